/* options.h - the command line of an example: its help text is also the list of its options

       static const char *const help = "train [options]: what it does\n"
                                       "    --epochs N     5: how often it sees all images\n"
                                       "    --verbose      more output\n";
       int main(int argc, char **argv)
       {
           int done = example_options(argc, argv, help);      --help, or a mistake in the command line
           if (done >= 0) return done;
           int epochs = atoi(example_option(argc, argv, "--epochs", "5"));

   An option is a word of the help text that begins with two dashes, behind a blank or a bracket. If one blank and a word in capitals follow, it takes
   a value: N is a whole number, X a number, other words any text. A program that takes words without dashes says so in the first line: "[N]". */
#ifndef EXAMPLE_OPTIONS_H_INCLUDED
#define EXAMPLE_OPTIONS_H_INCLUDED

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The argument after 'name' on the command line, or 'otherwise'. */
static inline const char *example_option(int argc, char **argv, const char *name, const char *otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name)) return argv[i + 1];
    return otherwise;
}
static inline bool example_flag(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], name)) return true;
    return false;
}

static inline size_t example__length(const char *s) { return strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"); }
/* The next option in the help text from 'at' on, or NULL. */
static inline const char *example__next(const char *at)
{
    for (; (at = strstr(at, "--")) != NULL; at += example__length(at))
        if (strchr(" (\n", at[-1]) && at[2] >= 'a' && at[2] <= 'z') return at;
    return NULL;
}
/* How many letters must be changed, added or left out to get b from a; both have less than 32 letters. */
static inline int example__distance(const char *a, size_t na, const char *b, size_t nb)
{
    int row[33];
    for (size_t j = 0; j <= nb; j++) row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int corner = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int best = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[nb];
}
/* What is wrong with the value of an option, or NULL. */
static inline const char *example__value(const char *kind, size_t n, const char *value)
{
    char *end;
    if (n != 1 || (*kind != 'N' && *kind != 'X')) return NULL;
    if (*kind == 'N') (void)strtoll(value, &end, 10);
    else (void)strtod(value, &end);
    return *value && !*end ? NULL : *kind == 'N' ? "a whole number" : "a number";
}
/* Checks the command line against the help text. Returns -1 if the program may go on, otherwise its exit status: 0 after
   --help, 2 after a mistake, with a message. */
static inline int example_options(int argc, char **argv, const char *help)
{
    int         name = (int)strcspn(help, " :");
    const char *bracket = strchr(help, '[');
    bool        words = bracket && bracket < help + strcspn(help, "\n") && strncmp(bracket, "[options]", 9) != 0;
    for (int i = 1; i < argc; i++) {
        const char *at = help, *near = NULL;
        size_t      n = strlen(argv[i]);
        int         nearest = 4;
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return fputs(help, stdout) < 0;
        if (strncmp(argv[i], "--", 2) != 0) {
            if (words && argv[i][0] != '-') continue;
            fprintf(stderr, "%.*s: '%s' is not an option; --help lists them\n", name, help, argv[i]);
            return 2;
        }
        while ((at = example__next(at)) != NULL && (example__length(at) != n || strncmp(at, argv[i], n) != 0)) {
            size_t m = example__length(at);
            int    d = n < 32 && m < 32 ? example__distance(argv[i], n, at, m) : nearest;
            if (d < nearest) near = at, nearest = d;
            at += m;
        }
        if (!at) {
            fprintf(stderr, "%.*s: there is no option %s", name, help, argv[i]);
            if (near) fprintf(stderr, "; did you mean %.*s?", (int)example__length(near), near);
            fprintf(stderr, "%s --help lists all\n", near ? "" : ";");
            return 2;
        }
        const char *kind = at + n + 1;
        if (at[n] != ' ' || *kind < 'A' || *kind > 'Z') continue;
        size_t      m = example__length(kind);
        const char *want = i + 1 < argc ? example__value(kind, m, argv[i + 1]) : "a value behind it";
        if (want) {
            fprintf(stderr, "%.*s: %s: expected %s", name, help, argv[i], want);
            if (i + 1 < argc) fprintf(stderr, ", found '%s'", argv[i + 1]);
            fputc('\n', stderr);
            return 2;
        }
        i++;
    }
    return -1;
}

#endif /* EXAMPLE_OPTIONS_H_INCLUDED */
