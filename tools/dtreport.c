/* dtreport.c - reports of runs on one page

       DT_REPORT=a.json ./train --lr 0.1; DT_REPORT=b.json ./train --lr 0.2
       dtreport a.json b.json -o compare.html

   Reads what DT_REPORT wrote, .json or .html, and writes a page that compares them; with one run, its page. docs/seeing.md.
   Exit status: 0 written; 1 a file is not a report or cannot be read or written; 2 a mistake on the command line. */
#define DT_IMPLEMENTATION
#include "dt_plot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "dtreport: reports of runs on one page\n"
    "\n"
    "  dtreport RUN... -o PAGE\n"
    "\n"
    "  RUN                 a report of DT_REPORT, .json or .html; NAME=RUN gives the run another name\n"
    "  -o, --output PAGE   the page to write\n"
    "  --help, --version\n"
    "  --                  ends the options\n"
    "\n"
    "It says nothing if all is well. Exit status: 0; 1 if a file is not a report or cannot be read or written; 2 for a "
    "wrong\n"
    "command line.\n";

static int wrong(const char *what, const char *arg)
{
    fprintf(stderr, "dtreport: %s%s%s%s; dtreport --help lists the options\n", what, *arg ? " '" : "", arg,
            *arg ? "'" : "");
    return 2;
}
int main(int argc, char **argv)
{
    const char **file = (const char **)calloc((size_t)argc + 1, sizeof *file);
    const char **name = (const char **)calloc((size_t)argc + 1, sizeof *name), *out = NULL;
    int          n = 0, ends = 0, status = 0;
    if (!file || !name) return fputs("dtreport: out of memory\n", stderr), 1;
    for (int i = 1; i < argc && status == 0; i++) {
        char *a = argv[i], *equals = strchr(a, '=');
        if (!ends && (!strcmp(a, "--help") || !strcmp(a, "-h"))) return fputs(help, stdout) < 0;
        if (!ends && !strcmp(a, "--version")) return printf("dtreport %s\n", DT_VERSION) < 0;
        if (!ends && !strcmp(a, "--")) ends = 1;
        else if (!ends && !strncmp(a, "--output=", 9)) out = a + 9;
        else if (!ends && (!strcmp(a, "-o") || !strcmp(a, "--output"))) {
            if (++i == argc) status = wrong("a path is missing after", a);
            else out = argv[i];
        } else if (!ends && a[0] == '-' && a[1]) status = wrong("there is no option", a);
        else {
            FILE *f = equals ? fopen(a, "rb") : NULL; /* a file may have a '=' in its name */
            if (f) fclose(f), equals = NULL;
            if (equals) *equals = 0, name[n] = a;
            file[n++] = equals ? equals + 1 : a;
        }
    }
    if (status == 0 && !n) status = wrong("no report was given", "");
    if (status == 0 && (!out || !*out)) status = wrong("where should the page be written? Give -o PAGE", "");
    if (status == 0 && dt_report_join(out, file, name, n) != DT_OK) {
        fprintf(stderr, "dtreport: %s\n", dt_error());
        status = 1;
    }
    free((void *)file);
    free((void *)name);
    return status;
}
