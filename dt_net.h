/* dt_net.h - v0.2.0 - a job of ranks: launching, joining, control, shared memory and TCP between them */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_net.h"
    In every other file that uses it:           #include "dt_net.h"

    Link with -lpthread -lm. dt_base.h must be in the same directory. Most programs include dt_comm.h instead: it builds
    on this header and has the collective calls.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_net.h"
    #include <stdio.h>
    #include <stdlib.h>

    static int rank_main(void *arg)
    {
        printf("%s %s of %s\n", (const char *)arg, getenv("RANK"), getenv("WORLD_SIZE"));
        return fflush(stdout);
    }
    int main(void) { return dt_spawn(4, rank_main, (void *)"rank"); }

WHAT IT DOES NOT DO

    No encryption and no checksums: joining is authenticated, after that the network is trusted. No RDMA.

CONTENTS

    >>status         the communicator
    >>joining        how ranks find each other; starting them
    >>inside         what other dt headers use of this one
    >>basis          implementation from here: errors, the clock, failing
    >>sockets        addresses, deadlines, reading and writing
    >>handshake      the challenge on every socket
    >>rendezvous     from the environment to a table of ranks
    >>control        the tree of control connections: deaths, aborts, inquiries, agreements
    >>shared         ranks of one machine: shared memory and threads
    >>tcp            streams between machines
    >>transports     the table of transports

MACROS

    DT_NET_IMPLEMENTATION  this header's part of DT_IMPLEMENTATION
    DT_COMM_MALLOC, DT_COMM_REALLOC, DT_COMM_FREE  memory of worlds and communicators (all or none); default malloc

ERRORS, THREADS

    As in dt_comm.h. Call dt_spawn while the program has only one thread.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_NET_IMPLEMENTATION)
#define DT_NET_IMPLEMENTATION
#endif
#include "dt_base.h"

#ifndef DT_NET_H_INCLUDED
#define DT_NET_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_net.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>status
   Status codes are dt_comm_status in dt_base.h. */
typedef struct dt_comm dt_comm; /* a communicator: a group of ranks that call collectives together; see dt_comm.h */
enum { DT_MEMBER_DIED = 1, DT_MEMBER_LEFT, DT_MEMBER_JOINED }; /* dt_comm_event.kind */
typedef struct dt_comm_event { /* what has happened to a member of a tolerant communicator: dt_comm_next_event */
    int     kind, rank;    /* DT_MEMBER_...; the member's rank in the communicator */
    int64_t incarnation;   /* of the member: 0 for those that were there at the start */
    int64_t pid;
    int64_t when;          /* ns since 1970; in the simulator: ns of virtual time */
    char    host[64];      /* the name of its machine */
    char    why[256];
} dt_comm_event;

/* ---------------------------------------------------------------------------------------------------- >>joining
   Rank and world size come from the first of these sources that is set:
     1. the options .rank and .world
     2. RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (PyTorch's env://). Under torchrun the
        agent occupies MASTER_PORT: dt uses DT_PORT, or MASTER_PORT + 1
     3. DMLC_ROLE (scheduler, server or worker), DMLC_NUM_WORKER, DMLC_NUM_SERVER, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, as for
        ps-lite and MXNet. All processes join one world, in which the scheduler is rank 0. It listens at DMLC_PS_ROOT_URI and
        gives the others their ranks in the order in which they come: 1 to DMLC_NUM_WORKER to the workers, the next ones to
        the servers. Before 4: ps-lite's launchers start workers and servers by an mpirun or srun each
     4. OMPI_COMM_WORLD_*
     5. PMI and PMIX
     6. SLURM_*. On several machines rank 0 is on the first machine of SLURM_STEP_NODELIST, unless MASTER_ADDR is set
   If no source is set, the world has one rank. dt_comm_launcher returns the source.

   Rank 0 listens at the master's address. Every connection begins with a mutual HMAC-SHA-256 challenge over the job's
   token. The token comes from .token_fd or DT_TOKEN_FD (inherited from the launcher), from DT_TOKEN_FILE (mode 0600), or
   under MPI from a broadcast. Without these, ranks of one machine use a token that only this user can read; ranks of
   several machines are refused, unless .insecure is true or DT_INSECURE=1.

   MPI: in a program compiled with DT_USE_MPI (mpicc -DDT_USE_MPI), .transport = "mpi" or DT_COMM_TRANSPORT=mpi sends the
   data by MPI messages. Rank, world, token and the address of rank 0 also come by MPI: no variable is needed, and all
   ranks of the MPI job join. .algo = "native" or DT_COMM_ALGO=native uses MPI's own collectives (all but alltoall); a
   small reduction before each of them checks that all ranks call the same one. dt starts MPI if the program has not
   done so, and then the last dt_comm_free ends it. MPI can start only once in a process: a program that joins twice must
   start and end MPI itself.
   If a rank dies, Open MPI 4.1 ends the job: all ranks within 10 s. mpirun names the rank, or prints the error of a
   survivor that noticed first. Under mpirun --enable-recovery the survivors get the error as with the other transports,
   and leave without MPI_Finalize. After a failure MPI may still write to the buffers of calls that had not ended: do not
   free them.

   GPUs: with .backend = DT_NCCL (dt_cuda.h, compiled with DT_USE_NCCL) buffers may be GPU memory, which NCCL moves. Host
   buffers move as without NCCL, in the same communicator. A call on GPU memory is ordered on the stream: it runs after
   the work that its thread has queued on that GPU, and before the work that the thread queues after the call (or after
   dt_work_wait). The host waits until all ranks have made the call, not until the call is done. So ranks that make
   different calls, or do not call at all, get the same errors as on the host, before NCCL is called. Supported are
   allreduce, broadcast, reduce, reduce_scatter, allgather, send and recv. NCCL knows no tags: what a rank sends to another from
   GPU memory must be received in the order in which it is sent, whatever the tags; another order, and a message that is given
   up, are errors of the communicator. If a rank dies, or a GPU makes no progress for the timeout, it fails on all ranks. The GPU is that of the first buffer. .algo = "two_level" on several
   machines uses NCCL inside each machine and the network of dt_comm.h between them.

   A launcher may pass two descriptors (tools/dtrun.c passes both): DT_LISTEN_FD to rank 0, the same as .listen_fd; and
   DT_REPORT_FD, a datagram socket, to every rank. When a communicator fails, each rank reports there which rank is at
   fault. */
enum { DT_NCCL = 1 }; /* .backend */
typedef struct dt_comm_opts {
    int         dt__first DT_D;
    int         rank DT_D, world DT_D;  /* world 0: both come from the environment */
    int         local_rank DT_D, local_world DT_D;
    const char *addr DT_D;         /* of rank 0: host name, IPv4 or IPv6 address */
    int         port DT_D;
    int         listen_fd DT_D;    /* rank 0: a socket that is already listening; 0: dt opens one */
    int         token_fd DT_D;     /* the token is read from it (32 bytes; a file may have 64 hexadecimal digits); 0: none */
    const char *token_file DT_D;
    bool        insecure DT_D;
    const char *bind       DT_D; /* address to listen at; default: loopback if all ranks are on this machine, else the
                                    address of the route to rank 0 */
    const char *transport DT_D;    /* "auto": shared memory inside a machine, TCP between machines; "shm", "tcp", "mpi" */
    int         backend DT_D;      /* DT_NCCL: buffers may also be GPU memory */
    double      timeout DT_D;      /* seconds without progress; default 30 (DT_COMM_TIMEOUT) */
    double      join_timeout DT_D; /* seconds; default 120 */
    int64_t     epoch DT_D;        /* number of restarts so far; ranks with another number are refused (DT_RESTART) */
    bool        no_thread DT_D;    /* no progress thread: asynchronous work advances only in dt_work_test and dt_work_wait */
    int         streams DT_D;      /* TCP connections for each pair, the same on all ranks; default 1 */
    double      bandwidth DT_D, latency DT_D; /* TCP: emulate a slower network (bytes/s, seconds); 0: full speed */
    const char *algo DT_D;         /* algorithm of all collectives: "ring" ...; default DT_COMM_ALGO, else by cost */
    bool        ordered DT_D;      /* reductions use DT_ALGO_ORDERED, whatever algo says (DT_COMM_ORDERED=1) */
    const char *costs DT_D;        /* file with a cost table; rank 0 reads it for all ranks. Default DT_COMM_COSTS, else a
                                      built-in table */
    int64_t     message_memory DT_D; /* bytes: the most that this rank holds for messages that no receive has taken, and
                                        for calls of messages that have not ended; default 256 MiB */
    bool        tolerant DT_D;     /* the death of a member is an event, not a failure: see dt_comm_next_event */
    int         room DT_D;         /* tolerant: the most members that it can ever have, those that have gone included: see
                                      dt_comm_accept. The same on all ranks. Default: nobody can join later */
    const char *name DT_D;         /* tolerant: the name of this member, up to 47 bytes; default: it has none */
    int64_t     incarnation DT_D;  /* dt_comm_join: how often the member of this name has been started; must grow */
    const char *invitation DT_D;   /* dt_comm_join: the text from dt_comm_accept, instead of address, port and token */
    dt_comm    *beside DT_D;       /* dt_comm_join of a thread: the communicator of any member, see dt_comm_threads */
} dt_comm_opts;
/* Forks n ranks that run fn; dt_comm_init in them finds the world. Returns the first exit status that is not 0. When a
   rank fails, the others have 10 s to end; then they get SIGTERM and, 2 s later, SIGKILL. A rank ends by quick_exit. Call
   it while the program has only one thread.
   SIGINT (Ctrl-C), SIGTERM and SIGHUP: the ranks get the signal and have 60 s to save and end; after a second one they are
   ended at once. Then the program dies of the signal, or runs its handler and dt_spawn returns.
   The limit of file descriptors is raised if the ranks need more. If they need more than the hard limit, dt_spawn and
   dt_comm_init fail at once, and the message says how many. */
DT_API int      dt_spawn(int n, int (*fn)(void *arg), void *arg);
/* The same on several machines: call it on each, with node = 0 to nodes - 1. It forks n of the nodes * n ranks. MASTER_ADDR
   and MASTER_PORT say where rank 0 is; DT_TOKEN_FILE (or DT_INSECURE=1) must be set on every machine. */
DT_API int      dt_spawn_nodes(int nodes, int node, int n, int (*fn)(void *arg), void *arg);

#ifdef __cplusplus
}
#endif
#endif /* DT_NET_H_INCLUDED */

#if defined(DT__WANT_INSIDE) && !defined(DT__NET_INSIDE)
#define DT__NET_INSIDE
/* ---------------------------------------------------------------------------------------------------- >>inside
   What other dt headers use of this one: worlds, frames and messages, transports, the communicator; the control
   connections, whose frames the simulator carries; the shared segment, in which dt_comm.h reduces. */
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "dt_net.h: frames are sent in the byte order of memory; big-endian machines are not supported"
#endif

#ifdef __cplusplus
extern "C" {
#endif
typedef struct dt__member { /* a row of the table of ranks, which every rank has after joining */
    int32_t  host, local;   /* the number of its machine; its rank there */
    int64_t  pid;
    uint8_t  host_id[16];   /* boot id and network namespace: equal means one machine */
    char     host_name[64];
    char     unix_name[32]; /* of its abstract Unix socket, without the leading NUL */
    uint8_t  addr[28];      /* sockaddr_in or sockaddr_in6 of its TCP listener */
    uint32_t addr_len;
    char     name[48];      /* of tolerant worlds: see dt_comm_opts */
    int64_t  incarnation;
} dt__member;
typedef struct dt__control dt__control;
typedef struct dt__world {
    int32_t      refs;
    int          rank, size, nhosts, local_rank, local_size;
    int64_t      epoch;          /* number of restarts */
    uint8_t      token[32];
    uint8_t      job[16];        /* random, chosen by rank 0: the id of this run */
    dt__member  *member;
    double       timeout, join_timeout;
    char         where[64];
    int          listen_fd, unix_fd;
    int          report_fd;      /* socket of the launcher for failure reports; 0: no launcher */
    dt__control *control;
    void        *sim;            /* the simulator that carries the control frames; NULL: sockets do */
    const struct dt__sim_ops *sim_ops;
    const int64_t *clock;        /* simulated time, ns; NULL: the clock of the machine */
    pthread_mutex_t lock;        /* protects comms and everything in control */
    dt_comm     *comms;          /* a list, linked by comm->next: dt__world_add, dt__world_remove */
    /* used by the joining and the control thread */
    int          ticket_fd;
    bool         have_token;     /* a token was given */
    bool         ticket_token;   /* the ticket carries the token: no token was given */
    int          fd_room;        /* descriptors for handshakes, beside those that joining needs */
    int64_t      join_deadline;
    bool         joined;
    bool         tolerant;       /* its first communicator is: a rank leaves without waiting for the others */
    char         name[48];       /* of this rank */
    int64_t      incarnation;
    int          workers, servers; /* of DMLC_NUM_WORKER, DMLC_NUM_SERVER; workers 0: the ranks came with their numbers */
    int          start, room;    /* ranks at the start; the most that there can be. size grows when a rank joins: atomic */
    const struct dt__transport *joined_by; /* the transport whose config found the ranks; NULL: the environment did */
    int          streams;        /* TCP connections of each pair; joining checks that all ranks have the same */
    const struct dt__client *client; /* the layer above */
    size_t       nsettings;      /* bytes of settings that rank 0 sends to all ranks when they have joined; 0: no settings */
    uint8_t      settings[256];
    char         settings_bad[400]; /* rank 0: why its settings are unusable; sent to all ranks, whose joining fails */
} dt__world;

static inline __attribute__((unused)) int dt__world_room(const dt__world *w) { return w->room > w->start ? w->room : w->size; }

/* The header of every message. All fields but rank, sent, late and late_rank must be equal on both sides. */
typedef struct dt__frame {
    uint32_t magic, version;
    uint64_t comm;               /* id of the communicator */
    int64_t  epoch;
    uint64_t seq;                /* of the operation in its communicator */
    int64_t  count;
    uint64_t nbytes;             /* of this message */
    uint64_t sent;               /* ns since the sender began the operation; in notes and posts: the time it began */
    int64_t  late;               /* ns: how much after the sender the latest rank (late_rank) began, as far as it knows */
    uint32_t step;               /* round of the plan */
    int32_t  rank;               /* the sender's, in the communicator */
    int32_t  root;
    int32_t  late_rank, zero;    /* late_rank -1: no rank is known to be late */
    uint8_t  coll, algo, dtype, op;
} dt__frame;
enum { DT__FRAME_MAGIC = 0x6d637464, DT__FRAME_VERSION = 1 };
enum { DT__ROOT_FREE = -1 }; /* root of the barrier inside dt_comm_free: it does not match any other call */

/* A message that is being sent or received: the engine fills it, a transport advances it. state is private to the
   transport; shm, tcp and mpi use these values. */
enum {
    DT__MSG_NEW = 0,
    DT__MSG_HEAD,    /* the header is being received */
    DT__MSG_BODY,    /* the payload moves */
    DT__MSG_IN_PLACE /* shm: the receiver reads the payload where it is */
};
typedef struct dt__msg {
    dt__frame head;              /* as this rank expects or sends it */
    char     *ptr;
    size_t    n, done;           /* payload bytes; how many of them have moved */
    size_t    head_done;         /* bytes of the header that have moved */
    bool      fold, left;        /* receive: reduce into ptr; the received data is the left operand */
    int       dtype, op;
    int       state;             /* DT__MSG_NEW at the start */
} dt__msg;

/* A transport moves messages between this rank and the others of a communicator. Messages of one pair and direction
   are moved one after the other, in the order in which they are given. One thread at a time calls these functions.
   To add a transport: write its functions, then add a row to dt__transports (>>transports). */
struct dt__config;
typedef struct dt__pollset { /* what a thread waits for; `until`: ns, at most until then */
    struct pollfd *p;
    int            n, cap;
    int64_t        until;
} dt__pollset;
enum { DT__REACH_HOST = 1, DT__REACH_ALL }; /* only ranks of the same machine; any rank */
typedef struct dt__transport {
    const char *name;            /* as in .transport and DT_COMM_TRANSPORT */
    int         reach;
    bool        fast_local;      /* ranks of one machine are as close as in shared memory */
    bool        late_writes;     /* after a failure it may still write to buffers of unfinished calls: never free them */
    /* Prepares the communicator; collective over its ranks. local: the n ranks on this machine. 0, or negative after
       dt__comm_bad. NULL: nothing to prepare, or another call than dt_comm_init opens it. */
    int  (*open)(dt_comm *c, const int *local, int n);
    int  (*send)(dt_comm *c, int peer, dt__msg *m); /* 1: done, ptr is free again; 0: call again; negative: failed */
    int  (*recv)(dt_comm *c, int peer, dt__msg *m); /* the same; checks the header with client->frame_ok */
    void (*fds)(dt_comm *c, dt__pollset *set); /* adds what to wait for: descriptors, a time. NULL: see wait */
    void (*wait)(dt_comm *c, double seconds); /* until something may have moved, or the time is over; NULL: fds tells */
    void (*close)(dt_comm *c);   /* also after open has failed */
    uint64_t (*bytes)(const dt_comm *c); /* sent through sockets so far; NULL: 0 */
    /* A transport that finds the ranks itself; NULL: the environment and the rendezvous do. */
    int  (*config)(struct dt__config *f, const dt_comm_opts *o); /* rank, world, token and address of rank 0 */
    void (*end)(bool died);      /* once for each config that succeeded, when its world is closed. died: a rank died */
    /* A transport with collectives of its own (DT_ALGO_NATIVE); NULL: it has none. */
    bool (*has)(int coll, int64_t total); /* its own collective, for so many elements; the same on all ranks */
    int  (*agree)(dt_comm *c, const dt__frame *head, int *phase); /* do all ranks call the same? 1: yes; 0: call again */
    int  (*native)(dt_comm *c, int coll, char *data, int64_t n, const int *part, int dtype, int op, int root, int *phase,
                  int64_t *done);
} dt__transport;

enum { DT__HISTORY = 64 };     /* operations remembered */
#define DT__LATE DT__NS_PER_MS /* a rank that comes at most this much after the others is not late */
struct dt_comm {
    dt__world  *world;           /* NULL: the ranks are threads of one process, or there is only one rank */
    dt_comm    *next;
    uint64_t    id;
    int         rank, size;
    int        *member;          /* rank in the world of each rank */
    int        *host;            /* machine of each rank; machines are numbered from 0 in the order of ranks */
    int         local_rank, local_size;
    double      timeout;
    const dt__transport *inside, *across; /* to ranks of this machine; to all other ranks. NULL: not used */
    void       *shared, *across_data;     /* their private data */
    const struct dt__device_transport *device_transport; /* for GPU memory; NULL: host memory only */
    void       *devices;         /* its private data */
    int         streams;
    bool        no_thread;
    bool        threads;         /* ranks are threads of this process */
    bool        ordered;         /* all reductions use DT_ALGO_ORDERED */
    dt_comm_opts opts;
    uint64_t    splits;
    int32_t     round;           /* agreements so far: dt_comm_shrink */
    uint8_t    *alive;           /* result of the last agreement: a bit for each rank of the world; NULL: no agreement yet */
    double      bandwidth, latency;
    /* Failure: only the first one is kept. text and failed_rank are written before status. */
    int32_t     status;          /* atomic; 0: it has not failed */
    int32_t     failing;         /* atomic: a thread is writing text */
    int         failed_rank;
    char        text[768];
    int32_t     error_read;      /* atomic: the program has read text */
    bool        first;           /* the first communicator of its world: others may join it */
    bool        left;            /* dt__comm_leave has been called: dt_comm_free does not wait again */
    /* What this rank is doing, for inquiries of other ranks: all atomic. */
    uint64_t    seq;             /* operations started */
    uint64_t    done;            /* operations finished */
    uint32_t    doing;           /* dt_coll + 1 of the running operation; 0: the program runs */
    int64_t     since;           /* ns: when that began */
    uint64_t    watched;         /* atomic: another rank waits in operation watched - 1 (>>control, dt__watch_take) */
    struct dt__note *note;       /* the last operations begun: in this rank's slot of the shared segment, or own_note */
    struct dt__note *own_note;
    /* The running collective: which rank came last. */
    bool        slow;            /* this rank waits */
    int         late_rank;
    int64_t     began, late;     /* ns; late: how much later than this rank late_rank began */
    int         wake_fd;         /* eventfd: the engine sleeps on it in wait(); written to wake the engine */
    struct dt__members *members;     /* a tolerant communicator; NULL: an ordinary one */
    uint64_t    links_arrived;   /* atomic: sockets for messages that have arrived: dt__world_links */
    void       *mail;            /* its messages: dt__mail of dt_msg.h */
    const struct dt__client *client; /* the layer above, and its private data */
    struct dt__engine *engine;
};

/* What a tolerant communicator has beside an ordinary one. Any thread may call the dt__group_... functions. */
enum { DT__WHY = 256 };
typedef struct dt__members {
    pthread_mutex_t lock;        /* protects all that is not atomic. Held for a moment; no other lock is taken under it */
    uint32_t        changes;     /* atomic: members that have gone or joined so far */
    int32_t         halted;      /* atomic: the status with which collectives end; 0: they go on */
    uint64_t        halt_from;   /* atomic: collectives with lower numbers go on: a member that left has finished them */
    int             start;       /* members at the start; later ones have joined */
    int             room;        /* the most members, those that have gone included */
    int             size;        /* atomic: members so far; the driver takes it over to c->size: dt__mail_members */
    uint8_t        *how;         /* of each member: DT__ALIVE, DT__DIED ... */
    char          (*why)[DT__WHY]; /* why it has gone */
    dt_comm_event  *event;       /* a ring of 2 * room: each member joins once and goes once, so it never overflows */
    int             first, nevents;
    int             fd;          /* eventfd: readable while there are events */
    bool            parted;      /* this member has said that it goes */
    char            text[768];   /* why collectives are halted */
} dt__members;
DT__INSIDE dt__members *dt__members_new(int size, int room); /* NULL: out of memory or descriptors */
DT__INSIDE void dt__members_free(dt__members *g);
/* A member has gone (how: DT__DIED ...), after it has finished so many collectives; UINT64_MAX: not known how many. False:
   that it has gone was known. */
DT__INSIDE bool dt__members_gone(dt_comm *c, int rank, int how, uint64_t done, const char *why);
DT__INSIDE void dt__members_joined(dt_comm *c, int rank); /* all lower ranks are known */
/* Collectives from this number on end with this status; messages go on. */
DT__INSIDE void dt__members_halt(dt_comm *c, int status, uint64_t from, const char *text);
DT__INSIDE int  dt__members_how(dt_comm *c, int rank, char *why, size_t nbytes); /* DT__ALIVE ...; why may be NULL */
/* Tells all members, this one included, that one of them has left or is expelled. */
DT__INSIDE void dt__members_part(dt_comm *c, int rank, int how, const char *why);
DT__INSIDE bool dt__members_next(dt_comm *c, dt_comm_event *out);
static inline __attribute__((unused)) int dt__comm_room(const dt_comm *c); /* the most members that it can have */
static inline __attribute__((unused)) int dt__comm_known(const dt_comm *c); /* members that this process knows of: any thread */
static inline __attribute__((unused)) int dt__comm_halted(const dt_comm *c, uint64_t seq);

/* Callbacks to the layer above, dt_comm.h. */
struct dt_work;
typedef struct dt__client {
    /* Is the header the expected one? If not, fails c on all ranks with a message that shows both headers. */
    bool (*frame_ok)(dt_comm *c, int peer, const dt__frame *want, const dt__frame *got);
    /* Describes the difference of the frames of two ranks. */
    void (*frame_differ)(const dt__frame *a, const dt__frame *b, char *buf, size_t nbytes);
    const char *(*coll_name)(int coll);
    bool (*aside)(const dt_comm *c); /* a progress thread drives c, beside a program that may be computing */
    /* dst := dst op src (left: src op dst), n elements; src needs no alignment */
    void (*fold)(int dtype, int op, void *dst, const void *src, int64_t n, bool left);
    /* Rank 0: the settings for all ranks that join. Returns bytes written, 0: no settings, negative after dt__comm_bad.
       settings_ok checks them on the other ranks. */
    int (*settings)(const dt_comm_opts *o, void *settings, size_t nbytes);
    bool (*settings_ok)(const void *settings, size_t nbytes);
    void (*message_done)(dt_comm *c, struct dt_work *w); /* a message has ended; by the driver */
} dt__client;

/* ---- addresses and sockets */
enum { DT__ADDRS = 8 };
typedef struct dt__addr {
    union {
        struct sockaddr         any;
        struct sockaddr_in      v4;
        struct sockaddr_in6     v6;
        struct sockaddr_un      un;
        struct sockaddr_storage room;
    } u;
    socklen_t n;
} dt__addr;
DT__INSIDE bool dt__comm_random(void *buf, size_t nbytes);
DT__INSIDE void dt__comm_pause(int64_t ns);
DT__INSIDE void dt__close(int *fd);
DT__INSIDE int dt__addr_find(const char *name, int port, dt__addr *out, const char **why); /* may block for long */
DT__INSIDE int dt__addr_find_by(const char *name, int port, dt__addr *out, const char **why, int64_t deadline);
DT__INSIDE bool dt__addr_is_any(const dt__addr *a);
DT__INSIDE void dt__addr_loopback(dt__addr *a, int port);
DT__INSIDE int dt__addr_port(const dt__addr *a);
DT__INSIDE bool dt__addr_route(const dt__addr *to, dt__addr *out);
DT__INSIDE void dt__addr_set_port(dt__addr *a, int port);
DT__INSIDE bool dt__addr_take(dt__addr *a, const uint8_t *bytes, uint32_t n);

/* ---- reports to the launcher of an elastic job (dt_elastic.h), datagrams on DT_REPORT_FD. STATE, JOINED, GONE, LEFT, REFUSED and SHORT
   come from the leader, the others from any member. All bytes are set. */
enum { DT__ELASTIC_MAGIC = 0x45525444, DT__ELASTIC_TEXT = 480, DT__ELASTIC_ADDR = 80 }; /* "DTRE" */
enum { DT__EL_ALIVE = 0, DT__EL_STATE, DT__EL_JOINED, DT__EL_GONE, DT__EL_REFUSED, DT__EL_RETRY, DT__EL_SHORT, DT__EL_DONE, DT__EL_FAILED, DT__EL_LEFT };
typedef struct dt__elastic_report {
    uint32_t magic, kind;
    int64_t  member, about;      /* DT_MEMBER of the sender; of the member that the report is about, or -1 */
    int64_t  generation, step;   /* changes of the members so far; the newest committed step */
    int32_t  members, min, max, want; /* want: so many newcomers would be taken now */
    char     address[DT__ELASTIC_ADDR]; /* STATE: where they join, HOST:PORT */
    char     text[DT__ELASTIC_TEXT];
} dt__elastic_report;

/* ---- joining */
enum { DT__TREE = 16, DT__CFRAME_MAX = 65536, DT__CTEXT = 700, DT__WORLD_MAX = 65536 };
enum { DT__CFRAME_MAGIC = 0x43435444 }; /* "DTCC" */
enum {
    /* clang-format off */
    DT__C_MEMBER = 1, DT__C_TABLE, DT__C_REFUSED, DT__C_MISSING, DT__C_COSTS, /* while joining */
    DT__C_SYNC, DT__C_MEET_UP, DT__C_MEET_DOWN, DT__C_MEET_FAIL, DT__C_ABORT, DT__C_DEATH,
    DT__C_ASK, DT__C_PING, DT__C_PONG, DT__C_HOP_PING, DT__C_HOP_PONG, DT__C_NOTE, DT__C_WATCH,
    DT__C_AGREE_STATE, DT__C_AGREE_ORDER,
    DT__C_LEAVE_UP, DT__C_LEAVE_DOWN, DT__C_BYE,
    DT__C_RELAY, DT__C_UNREGISTER, /* while joining */
    DT__C_JOIN, DT__C_WELCOME, /* a rank has joined later; what it is told */
    DT__C_PART /* a member has left a tolerant communicator, or was expelled from it */
    /* clang-format on */
};
typedef struct dt__chead { /* the header of a control frame */
    uint32_t magic, kind, nbytes;
    int32_t  rank; /* the sender */
} dt__chead;
typedef struct dt__ctable {
    int32_t total, first, n, zero;
} dt__ctable;
typedef struct dt__crelay { /* where a rank that has registered waits for the table */
    int32_t  rank;
    uint32_t addr_len;
    uint8_t  addr[28];
} dt__crelay;
typedef struct dt__block { /* a frame to send; several queues may hold it. The bytes follow */
    int    refs;
    size_t nbytes;
} dt__block;
/* The rank of a process that comes with a role, until rank 0 gives it a number: in dt__config, dt__world and dt__hello_c. */
enum { DT__RANK_WORKER = -2, DT__RANK_SERVER = -3 };
typedef struct dt__config {
    int      rank, world, local_world; /* local_world 0: unknown */
    int      workers, servers;         /* see dt__world */
    int      room;                     /* the most ranks that there can be; 0: as many as at the start */
    bool     local;                    /* all ranks are on this machine */
    bool     ticket;                   /* rank 0 gives its address and a token to processes of this user on this machine */
    char     name[64];                 /* of the Unix socket for that */
    char     where[64];
    char     host[256]; /* of rank 0; "": unknown */
    int      port;
    int      listen_fd; /* -1: no descriptor was given */
    char     bind[256];
    bool     have_token;
    uint8_t  token[32];
    int64_t  epoch;
    int      report_fd; /* 0: no launcher */
    double   timeout, join_timeout;
    int64_t  deadline;  /* ns: of joining, also of looking up names */
    int      streams;
    dt__addr addr[DT__ADDRS]; /* of rank 0 */
    int      naddr;
    const dt__transport *joined_by; /* see dt__world */
} dt__config;
DT__INSIDE int dt__env_int(const char *name, int64_t low, int64_t high, int64_t *out);
DT__INSIDE void dt__host_id(uint8_t out[16]);
DT__INSIDE int dt__listen_master(const dt__config *f);
/* Joins the job; NULL after dt__comm_bad. Communicators of threads have no world. */
DT__INSIDE dt__world *dt__world_join(const dt_comm_opts *o, const dt__client *client);
DT__INSIDE void dt__world_unref(dt__world *w);
/* Joins a tolerant world that exists: dt_comm_join. *gone: see dt__cwelcome, allocated. NULL after dt__comm_bad. */
DT__INSIDE dt__world *dt__world_enter(const dt_comm_opts *o, const dt__client *client, int32_t *round, uint8_t **gone);
DT__INSIDE int dt__world_accept(dt__world *w, bool open, const char *bind_to, int port, char *invitation, size_t nbytes);
DT__INSIDE size_t dt__world_address(const dt__world *w, char *buf, size_t nbytes); /* of this rank's listener, as HOST:PORT */
DT__INSIDE uint64_t dt__row_id(const dt__member *m); /* of the process; not 0 */
DT__INSIDE int dt__world_head(dt__world *w); /* the lowest living rank, as far as this rank knows */
struct dt__cwelcome;
struct dt__chead;
DT__INSIDE int dt__welcome_take(dt__world *w, const struct dt__chead *h, const uint8_t *body, struct dt__cwelcome *hello, uint8_t **gone,
                                int *have);

/* ---- the simulator (dt_sim.h), if it is in the program */
struct dt__conn;
typedef struct dt__sim_ops {
    void (*stir)(dt__world *w); /* wakes what takes the place of the control thread */
    struct dt__conn *(*dial)(dt__world *w, int peer, int kind, struct dt__block *later);
    void (*wait)(dt__world *w, int64_t until); /* until something has happened in the control of this rank, or that time, ns */
    void (*leave)(dt__world *w); /* its last communicator was freed */
    const dt__transport *transport;
} dt__sim_ops;

/* ---- the handshake and the control connections */
enum { DT__SHAKE_MAGIC = 0x314b5444, DT__SHAKE_VERSION = 2 }; /* "DTK1" */
enum { DT__KIND_REGISTER = 1, DT__KIND_TREE, DT__KIND_LINK, DT__KIND_FD, DT__KIND_NEWS, DT__KIND_JOIN };
typedef struct dt__hello_s {
    uint32_t magic, version;
    uint8_t  job[16];
    int64_t  epoch;
    uint8_t  nonce[32];
} dt__hello_s;
typedef struct dt__hello_c {
    uint32_t magic, version;
    uint8_t  job[16];
    int64_t  epoch;
    uint64_t comm; /* of a rank that registers: dt__roles */
    int32_t  rank, world, to, kind, stream;
    int32_t  zero; /* tolerant, with .room: the room */
    uint8_t  nonce[32], mac[32];
} dt__hello_c;
typedef struct dt__hello_r {
    uint32_t magic;
    int32_t  status;
    char     text[180];
    int32_t  rank; /* the number of a rank that came without one */
    uint8_t  mac[32];
} dt__hello_r;
typedef char
    dt__hello_sizes[sizeof(dt__hello_s) == 64 && sizeof(dt__hello_c) == 128 && sizeof(dt__hello_r) == 224 ? 1 : -1];

/* What a step of the handshake returns. Negative: it failed. */
enum {
    DT__SHAKE_AGAIN = 0, /* wait for dt__shake_events */
    DT__SHAKE_DONE = 1,
    DT__SHAKE_DECIDE = 2, /* accepting side: the peer is authentic; call dt__shake_reply, then step again */
    DT__SHAKE_NET = -1,   /* the connection broke */
    DT__SHAKE_NOT_DT = -2, /* the peer does not speak this protocol */
    DT__SHAKE_AUTH = -3,  /* the peer did not prove that it has the token, or closed: it has another token, or is busy */
    DT__SHAKE_BAD_VERSION = -4,
    DT__SHAKE_BAD_JOB = -5, /* another job, or an earlier start of this one */
    DT__SHAKE_REFUSED = -6 /* r.text says why */
};
enum { /* states of a handshake: the message that is sent or received next */
    DT__SHAKE_AT_S = 0,
    DT__SHAKE_AT_C,
    DT__SHAKE_AT_DECISION, /* accepting side: dt__shake_reply moves on; the dialing side skips it */
    DT__SHAKE_AT_R,
    DT__SHAKE_AT_END
};
typedef struct dt__shake {
    bool        server, any_job;
    int         state;           /* DT__SHAKE_AT_... */
    int32_t     number;          /* accepting side: what it gives to a rank that came without a number; 0: it had one */
    size_t      done;            /* bytes of the current message that have moved */
    uint8_t     token[32];
    dt__hello_s s;
    dt__hello_c c;
    dt__hello_r r;
} dt__shake;
#ifndef DT__ON_SEND /* tests replace it: a process may die before any message or control frame */
#define DT__ON_SEND() ((void)0)
#endif
/* Times of the protocol, ns. */
#ifndef DT__HANDSHAKE_TIME /* tests replace it */
#define DT__HANDSHAKE_TIME (5 * DT__NS_PER_S)    /* for a handshake that this rank accepted, or dialed while joining */
#endif
#define DT__REDIAL_TIME (1 * DT__NS_PER_S)       /* for a handshake that the control thread dialed in the tree */
#define DT__LINK_RETRY (10 * DT__NS_PER_MS)      /* after a failed dial of a link */
#define DT__JOIN_GRACE (700 * DT__NS_PER_MS)     /* other ranks wait this much longer than rank 0, which names the missing */
#define DT__RELAY_TIME (3 * DT__NS_PER_S)        /* to reach a relay, or rank 0 again */
#define DT__ACCEPT_PATIENCE (50 * DT__NS_PER_MS) /* for a handshake, when there are too many of them */
#define DT__RELEASE_TIME (500 * DT__NS_PER_MS)   /* for the last frames of a rank that leaves */
#define DT__NOTE_EVERY (250 * DT__NS_PER_MS)     /* neighbours are told what this rank does */
#define DT__INQUIRY_HOP (400 * DT__NS_PER_MS)    /* for the answer of the parent */
#define DT__INQUIRY_ANSWERS (500 * DT__NS_PER_MS) /* for the answers of all ranks, at the root */
#define DT__INQUIRY_VERDICT (850 * DT__NS_PER_MS) /* for the verdict of the root */
#define DT__ORPHAN_LOOK (300 * DT__NS_PER_MS)    /* for a rank to dial its new parent; then the parent dials it */
#define DT__AGREE_REPEAT (200 * DT__NS_PER_MS)   /* an order or a state of an agreement is sent again */
#define DT__AGREE_LOOK (50 * DT__NS_PER_MS)      /* between two looks at an agreement that is under way */
enum { DT__PENDING = 512 }; /* handshakes that this rank has accepted and that are not over, beside those of the ranks */
enum { DT__TURNED = 16 }; /* of ranks that were refused: dt__control.turned */
enum { DT__INQUIRIES = 8, DT__ABORTS = 256, DT__ARRIVED_MAX = 16384, DT__WATCHES = 64 };
#ifndef DT__AGREEMENTS /* tests of growth set these lower, so that they are full soon */
#define DT__AGREEMENTS 64
#endif
#ifndef DT__PARTS_KEPT
#define DT__PARTS_KEPT 1024
#endif
enum { DT__ALIVE = 0, DT__DIED = 1, DT__LEFT = 2, DT__LOST = 3, DT__ABSENT = 4 }; /* LOST: unreachable, perhaps alive;
                                                                                     ABSENT: it has not joined yet */
typedef struct dt__cjoin {
    int32_t    rank, zero;
    dt__member row;
} dt__cjoin;
typedef struct dt__cwelcome { /* for each rank two bytes follow: how it went from the world, and from the communicator */
    int32_t rank, start, room, size; /* size: ranks that there are, this one included; their rows follow in DT__C_TABLE */
    int32_t round, nsettings;  /* agreements so far; bytes of settings: they follow in DT__C_COSTS, before the rows */
    int64_t epoch;
} dt__cwelcome;
enum { DT__ROOM_MOST = 16384 }; /* members of a tolerant communicator */
enum { DT__INVITATION = 160 }; /* bytes of the text of dt_comm_accept */
typedef struct dt__cmeet { /* up: the number of `rank`; down: the largest, and the rank that gave it; failed: the text follows */
    uint64_t seq;
    int64_t  value;
    int32_t  rank, zero;
} dt__cmeet;
typedef struct dt__cabort { /* the text follows */
    uint64_t comm;
    int32_t  status, rank;
} dt__cabort;
typedef struct dt__cdeath { /* the text follows */
    int32_t rank, how;
} dt__cdeath;
typedef struct dt__cpart { /* the text follows */
    uint64_t comm;
    int32_t  rank, how; /* rank: in the communicator */
    uint64_t done;      /* collectives that it has finished: the others can finish them without it */
} dt__cpart;
/* dt__cask.doing of a message to or from dt__cask.peer */
#define DT__ASK_SEND 0x80000000u
#define DT__ASK_RECV 0x40000000u
#define DT__ASK_MESSAGE (DT__ASK_SEND | DT__ASK_RECV)
typedef struct dt__cask { /* the members follow: ranks in the world */
    uint64_t comm, seq;
    double   timeout;
    int32_t  asker, peer, n;
    uint32_t doing;
    int32_t  tag, zero; /* of a message */
} dt__cask;
typedef struct dt__cping {
    uint64_t id, comm;
} dt__cping;
typedef struct dt__cstate { /* what a rank is doing in a communicator: body of DT__C_PONG and DT__C_NOTE */
    uint64_t id, comm, seq, done;
    int64_t  age; /* ns since the operation began */
    int32_t  rank, has;
    uint32_t doing, zero;
} dt__cstate;

typedef struct dt__cagree { /* two bit sets follow, asked and in: see dt__agreement */
    uint64_t comm, built;
    double   timeout;
    int32_t  round, rank, root, accepted, nbuilt;
    uint8_t  joined, decided, all, order; /* order: DT__AGREE_ASK ... */
} dt__cagree;

typedef struct dt__queued {
    struct dt__queued *next;
    dt__block         *b;
} dt__queued;
/* States of a control connection. OPEN moves to READY or CLOSING; every state can move to BROKEN. */
enum {
    DT__CONN_HANDSHAKE = 1, /* until k->deadline */
    DT__CONN_OPEN,          /* the handshake is over; the peer is not registered, nor in the tree */
    DT__CONN_READY,         /* the peer is registered (DT__KIND_REGISTER) or in the tree (DT__KIND_TREE) */
    DT__CONN_CLOSING,       /* closes when its queue is empty */
    DT__CONN_BROKEN         /* dt__control_reap removes it */
};
/* How far this rank is with its goodbye on a connection. */
enum { DT__BYE_NOT_YET = 0, DT__BYE_SENT, DT__BYE_SHUT }; /* SENT: DT__C_BYE is queued; SHUT: shutdown(SHUT_WR) */
typedef struct dt__conn {
    struct dt__conn *next;
    int              fd, kind, peer, slot;
    uint8_t          state, broke_in; /* broke_in: the state before DT__CONN_BROKEN */
    uint8_t          goodbye;    /* DT__BYE_... */
    bool             end_expected; /* one side has sent its last frame: the end of the connection is no failure */
    bool             local;      /* a Unix socket */
    bool             probe;      /* dialed only to see whether the peer can be reached */
    bool             refused;    /* dialed, and nobody listens there */
    uint8_t          source;     /* accepted: a hash of the address of the peer */
    int64_t          since, deadline; /* of the handshake */
    dt__shake        shake;
    dt__chead        head;
    size_t           head_done, body_done, body_cap;
    uint8_t         *body;
    dt__queued      *out, *last;
    size_t           out_done;
    dt__block       *later;      /* is queued when the handshake is done */
    int32_t          sent_to;    /* rank 0, while joining: number of ranks that it has sent to this relay */
    int32_t          leave;      /* number of ranks in the subtree of the peer that want to leave */
    dt__cstate       note, note_sent; /* the last note of the peer; the last one that this rank sent */
} dt__conn;
static inline __attribute__((unused)) void dt__conn_break(dt__conn *k)
{
    if (k->state != DT__CONN_BROKEN) k->broke_in = k->state;
    k->state = DT__CONN_BROKEN;
}
static inline __attribute__((unused)) int dt__conn_last_state(const dt__conn *k)
{
    return k->state == DT__CONN_BROKEN ? k->broke_in : k->state;
}
static inline __attribute__((unused)) bool dt__conn_live(const dt__conn *k)
{
    return k->state != DT__CONN_HANDSHAKE && k->state != DT__CONN_BROKEN;
}
typedef struct dt__arrived {
    struct dt__arrived *next;
    int                 fd, kind, peer, stream;
    uint64_t            comm;
    int64_t             since;
} dt__arrived;
typedef struct dt__linked { /* a stream of messages between this rank and another, for a communicator */
    uint64_t comm;
    int32_t  peer, zero;
} dt__linked;
enum {
    DT__INQUIRY_FREE = 0,
    DT__INQUIRY_SENT,    /* to the parent, which has not answered yet */
    DT__INQUIRY_WAIT,    /* the parent is alive: wait for the verdict of the root */
    DT__INQUIRY_COLLECT  /* this rank is the root and collects answers */
};
typedef struct dt__inquiry {
    int         state;   /* DT__INQUIRY_... */
    dt__cask    ask;
    int32_t    *member;
    dt__cstate *answer;  /* of each rank of the world */
    uint64_t    id;
    int64_t     begin;
} dt__inquiry;
enum { DT__AGREE_ASK = 0, DT__AGREE_PROPOSE, DT__AGREE_DECIDE };
typedef struct dt__agreement { /* see dt__agree_step */
    uint64_t comm;             /* 0: free */
    int32_t  round;
    double   timeout;
    int64_t  begin, sent_at;   /* ns; sent_at: when the root sent its last order, or a waiting rank its last state */
    uint8_t *asked, *in;       /* bit sets; in: the set that was accepted or decided. came, acked, late: same allocation */
    bool     waiting, joined, decided, all;
    uint64_t built;
    int32_t  nbuilt, accepted; /* accepted: the root whose proposal this rank accepted, or -1 */
    /* at the root */
    uint8_t *came, *acked, *late;
    bool     proposed, same;   /* same: all ranks that came have built the same */
    bool     any;              /* at least one rank came */
    uint64_t first_built;           /* what the ranks that came have built, and for how many ranks */
    int32_t  nfirst_built;
    int64_t *heard_at;           /* ns: when each rank of the world was last heard; NULL: this rank is not the root */
} dt__agreement;
enum {
    DT__JOIN_OPEN = 0, /* rank 0: ranks register; other ranks: this rank has registered */
    DT__JOIN_COMPLETE, /* the table of ranks is complete */
    DT__JOIN_FAILED,
    DT__JOIN_MOVES     /* not rank 0: it is to wait at a relay, and dials it */
};
enum { /* rank 0, of each rank */
    DT__REG_NO = 0,
    DT__REG_ADMITTED,  /* its connection is accepted */
    DT__REG_MOVES,     /* its row is there; it was sent to a relay, and has not reached it */
    DT__REG_DONE       /* its row is there; it waits here or at a relay */
};
/* How far this rank is with leaving the world. It never goes back. From RELEASED on it accepts nothing and its control
   thread ends when its queues are empty, or at release_deadline. */
enum {
    DT__LEAVE_NO = 0,
    DT__LEAVE_ASKED,    /* this rank wants to leave and waits until all others do, or until leave_deadline */
    DT__LEAVE_RELEASED, /* all ranks leave */
    DT__LEAVE_ALONE,    /* joining failed: sends what is queued */
    DT__LEAVE_GOODBYE   /* the others stay: sends DT__C_BYE to its neighbours */
};
typedef struct dt__line { /* a line for the log; the text follows */
    struct dt__line *next;
    int              level;
} dt__line;
struct dt__control {
    pthread_t      thread;
    pthread_cond_t cond;
    bool           started, stop;
    dt__line      *lines, **lines_end; /* see dt__control_logf */
    int            wake;
    dt__conn      *conns, *parent, *healing;
    int            heal_rank;    /* the rank that is to become the parent, if heal_since is not 0 */
    int64_t        heal_since, heal_heard, heal_after; /* ns: first dialed; last answered, in whatever way; next dial */
    int            lost; /* DT__DIED or DT__LEFT: how the last parent went */
    uint8_t       *gone; /* DT__ALIVE ... of each rank */
    int            ngone, ndied;
    char           first_death[256];
    int64_t        accept_after, dial_after;
    int64_t       *orphan;       /* tolerant: when a rank that should be below this one was last heard; 0: it is */
    int64_t        orphan_at;    /* when to look for such ranks; 0: never */
    int64_t        head_gone;    /* tolerant: when this rank learned that the head, which accepted members, has gone; 0: never */
    uint64_t       turned[DT__TURNED]; /* tolerant: the last ranks (dt__row_id) that joined there and were refused here since */
    int            nturned;
    bool           led;          /* this rank has led an agreement of all: it knows who has joined, and may accept others */
    dt__linked    *linked;       /* streams of messages that exist */
    int            nlinked, linked_cap;
    int64_t        rejected_at;  /* ns: when a rejected connection was last logged */
    int            nrejected;    /* rejected connections since then */
    uint64_t       salt, draw;   /* random: dt__pending_source, dt__pending_pick */
    int            nother_token; /* connections that showed another token, while ranks register; the last came from there */
    char           other_token[80];
    /* registering */
    int          join;           /* DT__JOIN_... */
    int          join_status;    /* DT_COMM_ERR_..., if it failed */
    char         join_text[768];
    char         missing[480];   /* which ranks are missing; not rank 0: as rank 0 said */
    /* ... at rank 0 */
    uint8_t     *registered;     /* DT__REG_... of each rank */
    int          nregistered;    /* ranks in state DONE, and rank 0 */
    int          ndirect;        /* ranks that wait here, without those that are children in the tree */
    char         refused[240];
    int64_t      missing_at;
    /* ... at other ranks */
    dt__conn    *above;          /* to where this rank has registered: rank 0 or a relay */
    dt__crelay   relay;          /* where it is to wait */
    int          table_have;     /* rows of the table that have arrived */
    dt__arrived *arrived, *arrived_last;
    int          narrived;
    dt__block   *aborts[DT__ABORTS];
    int          naborts;
    dt__block   *parts[DT__PARTS_KEPT]; /* the last DT__C_PART frames, for new neighbours and new communicators */
    int          nparts;
    bool         accepting;      /* rank 0: others may join: dt_comm_accept */
    int32_t      rounds;         /* agreements of the first communicator so far */
    /* meetings: the call of this rank (meet_...); what rank 0 collects (root_...) */
    uint64_t    meet_seq, meet_failed;
    bool        meeting;
    int         meet_state;      /* 0: running, 1: done, negative: failed with this status */
    dt__cmeet   met;             /* the result */
    char        meet_text[768];
    bool        root_on;
    uint8_t    *root_came;       /* a flag for each rank */
    dt__cmeet   root;            /* its number, the largest value so far and the rank that gave it */
    int         root_done;
    int64_t     root_deadline;
    dt__inquiry inquiry[DT__INQUIRIES];
    uint64_t    inquiry_id;
    dt__frame   watch[DT__WATCHES]; /* operations in which some rank waits: see dt__watch_take */
    dt__agreement agreement[DT__AGREEMENTS];
    int64_t     hop_since;       /* ns: when the parent was pinged; 0: it has answered */
    bool        expelled;        /* the other ranks have declared this rank dead */
    uint64_t    turns, settling; /* iterations of the thread's loop; number of threads that wait for one (dt__world_settle) */
    int64_t     note_at;
    dt__cstate  note;
    uint32_t    note_doing;
    int     leave;               /* DT__LEAVE_... */
    int64_t leave_deadline, release_deadline;
    int     leave_sent;
};
DT__INSIDE dt__block *dt__block_new(int kind, int rank, const void *a, size_t na, const void *b, size_t nb);
DT__INSIDE void dt__block_unref(dt__block *b);
DT__INSIDE uint8_t *dt__block_body(dt__block *b);
DT__INSIDE dt__conn *dt__conn_new(dt__world *w, int fd, int kind, int peer);
DT__INSIDE void dt__conn_lost(dt__world *w, dt__conn *k, const char *how);
DT__INSIDE void dt__conn_established(dt__world *w, dt__conn *k); /* the handshake has succeeded */
DT__INSIDE int dt__control_new(dt__world *w); /* does not start its thread; negative: see errno */
DT__INSIDE void dt__control_free(dt__world *w);
DT__INSIDE int dt__control_admit(dt__world *w, const dt__conn *k, char *text, size_t nbytes);
DT__INSIDE void dt__control_expelled(dt__world *w, const char *why);
DT__INSIDE bool dt__control_frame(dt__world *w, dt__conn *k);
DT__INSIDE int64_t dt__control_next(const dt__world *w, int64_t now); /* ns: the next timer */
DT__INSIDE void dt__control_reap(dt__world *w);
DT__INSIDE void dt__control_timers(dt__world *w, int64_t now);
/* Every rank of the world gives a number; all get the largest, and the lowest rank that gave it. Collective, over the control
   tree. 0, or negative after dt__comm_bad. most and who may be NULL. */
DT__INSIDE int dt__world_meet(dt__world *w, int64_t value, int64_t *most, int *who);
/* The first of n ranks of this machine passes a descriptor to the others (Unix socket, same user); collective among
   them. member: their ranks in the world. fd: on the first rank the descriptor, or negative if it has none: then the call
   fails on all of them. Returns the descriptor, or negative after dt__comm_bad. */
DT__INSIDE int dt__world_pass_fd(dt__world *w, uint64_t comm, const int *member, int n, int fd);
/* Returns a connected, authenticated, non-blocking socket to a rank of the world (peer) for a communicator. It never waits:
   the control thread dials. Of the streams of collectives the lower rank dials; the stream of messages is dialed by the
   rank that has something to send, and if both do, the connection of the lower rank counts. DT__FD_NOT_YET: call again;
   DT__FD_FAILED: dt__comm_failed was called. c->wake_fd is written when a connection for c arrives. */
enum { DT__STREAM_MAIL = 1000 }; /* streams of collectives are below it */
enum { DT__FD_NOT_YET = -1, DT__FD_FAILED = -2, DT__FD_NO_FD = -3 };
DT__INSIDE int dt__world_link(dt__world *w, dt_comm *c, int peer, int stream);
/* A stream of messages that has arrived for c; *peer: its rank in c. -1: none. c->links_arrived counts them. */
DT__INSIDE int dt__world_links(dt__world *w, dt_comm *c, int *peer);
/* Tells every rank that communicator c has failed; only queues the frames. */
DT__INSIDE void dt__world_abort(dt__world *w, dt_comm *c, int status, int rank, const char *text);
DT__INSIDE void dt__world_abort_id(dt__world *w, uint64_t comm, int status, int rank, const char *text);
/* c made no progress for its timeout in operation seq, waiting for 'peer' (rank in c; -1: unknown): finds out which rank
   is at fault and fails c on all ranks. Operations count from 1: a rank with c->seq below seq has not called it. Returns
   at once; c fails within a second. */
DT__INSIDE void dt__world_ask(dt__world *w, dt_comm *c, uint64_t seq, int peer, uint32_t message, int tag);
/* This rank waits in the collective of this frame: finds ranks that called another collective with the same number. */
DT__INSIDE void dt__world_watch(dt__world *w, const dt__frame *f);
/* A collective begins. If another rank waits in a different one with the same number, the communicator fails. */
DT__INSIDE void dt__world_begin(dt__world *w, dt_comm *c, const dt__frame *f);
/* This rank did not run for long (perhaps it was stopped): returns when the control frames that arrived are processed. */
DT__INSIDE void dt__world_settle(dt__world *w);
/* Between these calls c fails when one of its ranks dies or fails it. The id of a communicator is never used again in the
   same world. */
DT__INSIDE void dt__world_add(dt__world *w, dt_comm *c);
DT__INSIDE void dt__world_remove(dt__world *w, dt_comm *c);
DT__INSIDE int dt__world_gone(dt__world *w, int rank); /* DT__ALIVE, DT__DIED ..., as far as this rank knows */
/* Agrees with the ranks of *set (a bit for each rank of the world) on which of them are alive. round numbers the
   agreements of a communicator. *set becomes the ranks that took part and live, the same on all of them. built: id of the
   communicator that this rank made from the last result, for nbuilt ranks (0: nothing). *all: every rank of the new set
   has built the same. 0, or negative after dt__comm_bad; ends within a few times the timeout. */
DT__INSIDE int dt__world_agree(dt__world *w, uint64_t comm, int round, double timeout, uint8_t *set, uint64_t built,
                               int nbuilt, bool *all);
/* Waits until others wait for this rank in agreement `round` of the communicator. 1: they do; 0: the time is over; negative: this
   rank was expelled, or is alone. */
DT__INSIDE int dt__world_asked(dt__world *w, uint64_t comm, int round, double seconds);
DT__INSIDE size_t dt__agree_nbytes(const dt__world *w);
static inline __attribute__((unused)) bool dt__bit(const uint8_t *bits, int i) { return bits[i / 8] >> (i % 8) & 1; }
static inline __attribute__((unused)) void dt__bit_set(uint8_t *bits, int i)
{
    bits[i / 8] = (uint8_t)(bits[i / 8] | 1u << (i % 8));
}

/* ---- failing, the clock */
#ifdef DT_STATIC
static __thread const int64_t *dt__net_clock;
static __thread void (*dt__net_pause)(int64_t ns);
#else
extern __thread __attribute__((visibility("hidden"))) const int64_t *dt__net_clock; /* simulated time, in its thread */
extern __thread __attribute__((visibility("hidden"))) void (*dt__net_pause)(int64_t ns); /* in the thread of a simulated rank */
#endif
DT__INSIDE int64_t dt__comm_now(void); /* ns */
DT__INSIDE int64_t dt__comm_coarse(void); /* ns, in steps of clock ticks, and cheap */
static inline __attribute__((unused)) int64_t dt__ns_of(double seconds) { return (int64_t)(seconds * 1e9); }
static inline __attribute__((unused)) double dt__seconds_of(int64_t ns) { return (double)ns * 1e-9; }
static inline __attribute__((unused)) struct timespec dt__timespec_of(int64_t ns)
{
    struct timespec t;
    t.tv_sec = (time_t)(ns / DT__NS_PER_S);
    t.tv_nsec = (long)(ns % DT__NS_PER_S);
    return t;
}
DT__INSIDE const char *dt__comm_who(const dt_comm *c, int rank, bool host, char *buf, size_t nbytes); /* rank: in c */
/* The communicator has failed; only the first call counts. Wakes its engine. Any thread. rank: in the communicator. */
DT__INSIDE void dt__comm_failed(dt_comm *c, int status, int rank, const char *text);
/* Fails the communicator on this rank and on all others; returns the status. */
DT__INSIDE int dt__comm_fail(dt_comm *c, int status, int rank, const char *format, ...) DT__PRINTF(4, 5);
static inline __attribute__((unused)) bool dt__comm_ok(const dt_comm *c)
{
    return __atomic_load_n(&c->status, __ATOMIC_ACQUIRE) == 0;
}
static inline __attribute__((unused)) int dt__comm_room(const dt_comm *c) { return c->members ? c->members->room : c->size; }
static inline __attribute__((unused)) int dt__comm_known(const dt_comm *c)
{
    return c->members ? __atomic_load_n(&c->members->size, __ATOMIC_ACQUIRE) : c->size;
}
/* The status with which the collective of this number ends, or 0. */
static inline __attribute__((unused)) int dt__comm_halted(const dt_comm *c, uint64_t seq)
{
    int status = c->members ? __atomic_load_n(&c->members->halted, __ATOMIC_ACQUIRE) : 0;
    return status && seq >= __atomic_load_n(&c->members->halt_from, __ATOMIC_ACQUIRE) ? status : 0;
}

/* ---- the shared segment */
#define DT__ALIGNED __attribute__((aligned(64)))
#if defined(__SANITIZE_THREAD__) /* ThreadSanitizer does not model fences */
#define DT__FENCE(word) ((void)__atomic_fetch_add(word, 0, __ATOMIC_SEQ_CST))
#else
#define DT__FENCE(word) __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif
enum {
    DT__POST_FIRST = 48,         /* payload bytes in the first cache line of a post */
    DT__POST_SHORT = 4096,
    DT__PIECE      = 64 << 10,   /* bytes of a piece of a staged vector, at most */
    DT__PIECE_MIN  = 16 << 10,
    DT__STAGES     = 4,          /* stages in use: few, so that they stay in the caches */
    DT__STAGES_MOST = 16,        /* the same while ranks and other programs share cores: fewer, longer turns of a rank */
    DT__STAGE_SPAN = DT__STAGES_MOST * DT__PIECE + 53 * 64, /* from the stages of a rank to those of the next: odd lines, so
                                    that the same piece of all ranks is not in the same sets of a cache */
    DT__OWN        = 4096,       /* bytes prefetched for writing before they are reduced */
    DT__FRAGMENT   = 64 << 10,
    DT__FRAGMENTS  = 8,
    DT__NOTES      = 64,
    DT__PROOF      = 16,         /* bytes */
    DT__RING_CELL  = 64,         /* bytes of a cell of a ring for messages (dt_msg.h, >>rings) */
    DT__RING_LEAST = 2048,       /* cells of a ring, a power of 2 */
    DT__RING_MOST  = 16384,
    DT__CORES      = 1024,       /* bits in a mask of CPU cores */
    DT__LEVELS     = 26          /* of chunks of an arena: the last has 2^46 bytes or more */
};
typedef struct dt__post {
    uint64_t  no;                /* number of the shared operation, from 1; written last */
    uint64_t  print;             /* fingerprint of the fields that must be equal on all ranks */
    uint8_t   first[DT__POST_FIRST];
    int64_t   at;                /* where the vector is: see dt__shared_see; DT__UNSEEN, DT__UNSEEN_CROWDED */
    dt__frame frame;
} dt__post;
enum { DT__UNSEEN = -1, DT__UNSEEN_CROWDED = -2 }; /* other ranks cannot see the vector; it asks for DT__STAGES_MOST */
/* The counters of a rank that others can wait for */
enum { DT__POST_EVEN = 0, DT__POST_ODD, DT__FIN, DT__PUT, DT__PART, DT__COUNTERS };
typedef struct dt__note { /* an operation that has begun; frame.sent: when (ns, clock of this machine) */
    uint64_t  seq, print;   /* sequence number + 1, written last; fingerprint */
    dt__frame frame;
} dt__note;
typedef struct dt__rank_slot {
    dt__post post[2] DT__ALIGNED;
    uint64_t put DT__ALIGNED;    /* pieces that this rank has staged so far, in all operations */
    uint64_t part DT__ALIGNED;   /* pieces of which this rank has reduced its part */
    uint64_t fin DT__ALIGNED;    /* number of the last direct operation that this rank finished */
    uint32_t asleep DT__ALIGNED; /* set by this rank; cleared by the rank that wakes it, or by itself */
    int32_t  core;               /* the CPU core on which it last waited, plus 1; 0: unknown */
    uint64_t want[DT__COUNTERS]; /* it sleeps until one of these counters has this value on all ranks; 0: not this one.
                                    All 0: until anything is published */
    uint64_t cores[DT__CORES / 64]; /* mask of the CPU cores that the rank may use */
    uint32_t has_cores;          /* cores is written */
    uint32_t touching;           /* threads: this rank is using the memory of other ranks */
    dt_comm *comm;               /* threads, tolerant: its communicator; under the lock of the head: dt__threads_part */
    int32_t  gone;               /* ... how it went (DT__DIED ...), after how many collectives, and why */
    uint64_t gone_done;
    int64_t  incarnation;        /* ... and its name */
    char     name[48];
    char     gone_why[DT__WHY];
    int32_t  pid;                /* its process, written after the next two; 0: not known (dt_msg.h, dt__peek) */
    uint64_t proof_at;           /* where it has its proof, */
    uint8_t  proof[DT__PROOF];   /* these random bytes */
    dt__note note[DT__NOTES] DT__ALIGNED;
    uint64_t begun, done;        /* number of collectives so far */
    uint8_t  more[2][DT__POST_SHORT] DT__ALIGNED;
} dt__rank_slot;
typedef struct dt__channel { /* from one rank to another */
    uint64_t  head DT__ALIGNED; /* fragments sent */
    uint64_t  tail DT__ALIGNED; /* fragments received */
    dt__frame frame DT__ALIGNED;
    int64_t   at;               /* where the payload is: see dt__shared_see; -1: in the fragments */
    uint8_t   data[DT__FRAGMENTS][DT__FRAGMENT] DT__ALIGNED;
} dt__channel;
typedef struct dt__ring { /* frames of messages from one rank to another */
    uint64_t tail DT__ALIGNED;  /* cells that the receiver has used up */
    uint8_t  cell[1][DT__RING_CELL] DT__ALIGNED; /* dt__ring_ncells of them */
} dt__ring;
typedef struct dt__segment_head { /* the beginning of the segment */
    uint32_t sleepers DT__ALIGNED; /* ranks whose asleep is set */
    uint32_t bell;              /* the futex on which all ranks sleep; changes when one is woken */
    int64_t  crowded;           /* ns: until then other programs are assumed to use the cores; 0: they are not */
    int32_t  refs;              /* threads only: ranks that use the segment */
    int64_t  chunk;             /* processes only: bytes of the first chunk of an arena, a power of 2 */
    int32_t  failing DT__ALIGNED, status; /* failure of the communicator, for all ranks here; only the first is kept */
    int32_t  rank;
    char     text[768];
    /* Agreement of threads on which ranks are alive: dt__threads_shrink. */
    int32_t  lock;              /* protects the rest, and comm and gone of the slots */
    int32_t  accepting;         /* atomic: others may join: dt_comm_accept */
    int32_t  nmembers, nstart;  /* tolerant: members so far; at the start */
    int32_t  round, ncame, nin; /* rounds decided so far; ranks that came to the next; ranks in the result of the last */
    int64_t  deadline;
    uint64_t came[16];          /* a bit for each rank */
    struct {
        uint64_t in[16];
        int32_t  n;
        char    *base;          /* the new segment */
    } result[2];                /* of the last two rounds */
} dt__segment_head;
typedef char dt__segment_head_size[sizeof(dt__segment_head) <= 4096 ? 1 : -1];
typedef struct dt__arena_block { /* a block of the arena, inside one chunk; the list is sorted by offset */
    int64_t           at, n;     /* at: as if the chunks of the arena lay one behind the other */
    bool              used;
    struct dt__arena_block *next;
} dt__arena_block;
typedef struct dt__shared {
    char     *base;
    size_t    nbytes;           /* what is mapped at base: all but the chunks of the arenas from level 1 on */
    dt__segment_head *head;
    int       n, me, fd;        /* ranks here; index of this rank among them; -1: threads */
    int      *index, *rank;     /* index here of a rank of the communicator (-1: on another machine), and the inverse */
    size_t   *ready;            /* by index here: bytes of each fragment to that rank that are backed by memory */
    char     *stages;           /* the stages of the first rank */
    int       staged;           /* stages of this rank that are backed by memory */
    uint64_t  no, pieces;       /* shared operations and staged pieces so far */
    int       spin;
    int       nstages;          /* of the next staged operation: DT__STAGES or DT__STAGES_MOST, the same on all ranks */
    bool      shares_core;      /* this rank has waited for a rank on its own core while it was crowded */
    bool      owed;             /* something was published, but sleepers were not checked after a fence: dt__shared_settle */
    int       owed_to[8], nowed; /* the same, for these ranks only */
    int       looked;           /* slot at which dt__shared_agree goes on */
    /* dt_comm_alloc: see >>shared. far: where the chunk of each rank is mapped, by level; atomic, NULL: not yet */
    int64_t   arenas, chunk;    /* offset of the arenas in the segment; bytes of a chunk of level 0 */
    int64_t   arena_most, arena_used; /* bytes that this rank may allocate, and has allocated */
    char    **far[DT__LEVELS];
    uint64_t  opened;           /* atomic: a bit for each level of which this rank uses its own chunk */
    dt__arena_block *blocks;
    pthread_mutex_t lock;       /* protects blocks, and what follows from adding a chunk: opened, far */
} dt__shared;
DT__INSIDE dt__shared *dt__shared_new(dt_comm *c, const int *local, int n, char *base, size_t nbytes, int fd);
DT__INSIDE void dt__shared_free(dt__shared *s);
DT__INSIDE void dt__head_lock(dt__segment_head *h);
DT__INSIDE void dt__head_unlock(dt__segment_head *h);
DT__INSIDE void dt__threads_enter(dt_comm *c); /* threads, tolerant: from now on c learns of members that go */
DT__INSIDE void dt__threads_leave(dt_comm *c);
DT__INSIDE int dt__segment_new(int n);
DT__INSIDE bool dt__segment_take(int fd, int64_t at, int64_t n); /* backs a part of it with memory; false: see errno */
DT__INSIDE int64_t dt__shared_arenas(int n); /* where the channels end and the arenas begin */
DT__INSIDE void *dt__arena_alloc(dt__shared *s, size_t nbytes);
DT__INSIDE bool dt__arena_free(dt__shared *s, void *ptr); /* false: ptr is not in the arena */
DT__INSIDE void dt__shared_wake(dt__shared *s);   /* wakes all sleepers */
DT__INSIDE void dt__shared_notify(dt__shared *s); /* wakes those that can go on now */
DT__INSIDE void dt__shared_wake_one(dt__shared *s, int i);
DT__INSIDE void dt__shared_sleep(dt__shared *s, uint32_t bell, int64_t ns); /* sleeps, then dt__shared_rise */
DT__INSIDE void dt__shared_sleep_on(dt__shared *s, uint32_t bell, int64_t ns);
DT__INSIDE void dt__shared_wake_self(dt__shared *s); /* another thread of this rank sleeps */
/* Must a rank that this one waits for get the core of this one? want: see dt__rank_slot. */
DT__INSIDE bool dt__shared_gives_way(dt__shared *s, const uint64_t *want);
/* Other programs use the cores: >>shared, "crowded cores". s may be NULL. */
DT__INSIDE void dt__crowd_found(dt__shared *s, int64_t now);
DT__INSIDE void dt__crowd_gap(dt__shared *s, int64_t now); /* a yield or a few polls took long: once is chance, often is a crowd */
DT__INSIDE bool dt__crowd_ends(dt__shared *s, int64_t now);
DT__INSIDE bool dt__crowd_known(const dt__shared *s);
DT__INSIDE void dt__shared_fail(dt__shared *s, int status, int rank, const char *text);
/* The last operation that a rank of c on this machine began, and how many it has finished; false: unknown. */
DT__INSIDE bool dt__shared_last(const dt_comm *c, int rank, dt__frame *f, uint64_t *done);
DT__INSIDE bool dt__shared_agree(dt_comm *c, const dt__frame *mine);
DT__INSIDE int dt__shared_cores(uint64_t *set); /* mask of the CPU cores that this thread may use; returns their number */
DT__INSIDE int dt__shared_spin(dt__shared *s);
/* The segment of n ranks: head; slots; flags of channels; for each rank a row with a byte for each rank that sends it messages;
   stages; channels; rings of messages; arenas. Offsets: */
static inline __attribute__((unused)) size_t dt__shared_flags(int n) { return 4096 + (size_t)n * sizeof(dt__rank_slot); }
static inline __attribute__((unused)) size_t dt__shared_rows(int n)
{
    return (dt__shared_flags(n) + (size_t)n * (size_t)n + 63) & ~(size_t)63;
}
static inline __attribute__((unused)) size_t dt__row_nbytes(int n) { return ((size_t)n + 63) & ~(size_t)63; }
static inline __attribute__((unused)) size_t dt__shared_stages(int n)
{
    return (dt__shared_rows(n) + (size_t)n * dt__row_nbytes(n) + 4095) & ~(size_t)4095;
}
static inline __attribute__((unused)) size_t dt__shared_channels(int n)
{
    return (dt__shared_stages(n) + (size_t)n * DT__STAGE_SPAN + 4095) & ~(size_t)4095;
}
static inline __attribute__((unused)) size_t dt__shared_rings(int n)
{
    return dt__shared_channels(n) + (size_t)n * (size_t)n * sizeof(dt__channel);
}
static inline __attribute__((unused)) uint8_t *dt__ring_row(const dt__shared *s, int to)
{
    return (uint8_t *)s->base + dt__shared_rows(s->n) + (size_t)to * dt__row_nbytes(s->n);
}
/* Large rings are faster: the two ranks copy at the same time. With many ranks they are smaller, for a rank has one to each. */
static inline __attribute__((unused)) size_t dt__ring_ncells(int n)
{
    size_t k = DT__RING_MOST;
    while (k > DT__RING_LEAST && k * (size_t)n > 4 * DT__RING_MOST) k /= 2;
    return k;
}
static inline __attribute__((unused)) size_t dt__ring_nbytes(int n)
{
    return offsetof(dt__ring, cell) + dt__ring_ncells(n) * DT__RING_CELL;
}
static inline __attribute__((unused)) dt__ring *dt__ring_of(const dt__shared *s, int from, int to)
{
    size_t i = (size_t)from * (size_t)s->n + (size_t)to;
    return (dt__ring *)(void *)(s->base + dt__shared_rings(s->n) + i * dt__ring_nbytes(s->n));
}
static inline __attribute__((unused)) dt__rank_slot *dt__slot_of(const dt__shared *s, int i)
{
    return (dt__rank_slot *)(void *)(s->base + 4096) + i;
}
/* Translates a pointer for other ranks: threads share all memory, processes only the segment. -1: they cannot see it. */
DT__INSIDE int64_t dt__arena_at(const dt__shared *s, const void *p, size_t nbytes); /* in a chunk that is far */
DT__INSIDE char *dt__arena_see(dt__shared *s, int64_t at, size_t nbytes);
static inline __attribute__((unused)) int64_t dt__shared_at(const dt__shared *s, const void *p, size_t nbytes)
{
    uintptr_t a = (uintptr_t)p, b = (uintptr_t)s->base;
    if (s->fd < 0) return (int64_t)a;
    if (a >= b && a - b < s->nbytes && nbytes <= s->nbytes - (a - b)) return (int64_t)(a - b);
    return __atomic_load_n(&s->opened, __ATOMIC_ACQUIRE) > 1 ? dt__arena_at(s, p, nbytes) : -1;
}
/* The inverse, for nbytes of any rank of this machine. Maps the memory if it is far and this is the first time. NULL: it
   cannot be mapped, see errno; EINVAL: the position is not one of the segment. */
static inline __attribute__((unused)) char *dt__shared_see(dt__shared *s, int64_t at, size_t nbytes)
{
    if (s->fd < 0) return (char *)(uintptr_t)at;
    if ((uint64_t)at < s->nbytes && nbytes <= s->nbytes - (uint64_t)at) return s->base + at;
    return dt__arena_see(s, at, nbytes);
}
/* Fails c, because dt__shared_see returned NULL for memory of a rank of c. Returns the status. */
DT__INSIDE int dt__shared_unseen(dt_comm *c, int rank, size_t nbytes);
/* Backs the first n stages of this rank with memory; before a piece is put there. False: c has failed. */
DT__INSIDE bool dt__shared_stage(dt_comm *c, dt__shared *s, int n);
/* Takes over a failure that another rank of this machine has written to the segment. */
static inline __attribute__((unused)) void dt__comm_look(const dt_comm *c)
{
    const dt__shared *s = (const dt__shared *)c->shared;
    int               status = s ? __atomic_load_n(&s->head->status, __ATOMIC_ACQUIRE) : 0;
    if (!status) return;
    if (c->members) dt__members_halt((dt_comm *)(uintptr_t)c, status, 0, s->head->text);
    else if (dt__comm_ok(c)) dt__comm_failed((dt_comm *)(uintptr_t)c, status, s->head->rank, s->head->text);
}
/* Something was published. A rank that goes to sleep now may miss this store, and this rank may miss its sleep flag:
   dt__shared_settle checks again after a full fence, before this rank waits or leaves. A fence here would slow the work. */
static inline __attribute__((unused)) void dt__shared_ring(dt__shared *s)
{
    s->owed = true;
    if (__builtin_expect(__atomic_load_n(&s->head->sleepers, __ATOMIC_RELAXED) != 0, 0)) dt__shared_notify(s);
}
static inline __attribute__((unused)) void dt__shared_settle(dt__shared *s)
{
    int  n = s->nowed;
    bool all = s->owed;
    if (!all && !n) return;
    s->owed = false;
    s->nowed = 0;
    DT__FENCE(&s->head->sleepers);
    if (__builtin_expect(__atomic_load_n(&s->head->sleepers, __ATOMIC_RELAXED) == 0, 1)) return;
    if (all) dt__shared_notify(s);
    for (int i = 0; i < n; i++) dt__shared_wake_one(s, s->owed_to[i]);
}
/* As dt__shared_ring, if only rank i (index here) waits for it: of 1,024 ranks that wait, the others sleep on. A list that is
   full is settled: dt__shared_notify would not wake a rank that sleeps for messages only. */
static inline __attribute__((unused)) void dt__shared_ring_to(dt__shared *s, int i)
{
    if (!s->nowed || s->owed_to[s->nowed - 1] != i) {
        if (s->nowed == (int)DT__COUNT_OF(s->owed_to)) dt__shared_settle(s);
        s->owed_to[s->nowed++] = i;
    }
    if (__builtin_expect(__atomic_load_n(&s->head->sleepers, __ATOMIC_RELAXED) != 0, 0)) dt__shared_wake_one(s, i);
}
/* Prefetches cache lines for writing: each moves once to this core, in exclusive state. */
static inline __attribute__((unused)) void dt__own_lines(char *p, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
#if defined(__x86_64__)
        __asm__ volatile("prefetchw %0" : : "m"(p[i]));
#else
        __builtin_prefetch(p + i, 1);
#endif
}
/* Sleeping: call dt__shared_doze, check once more whether there is work, then dt__shared_rise if there is, else
   dt__shared_sleep. No wake-up is lost: of a rank that publishes the last thing a sleeper waits for and of the sleeper, each
   writes, passes a full fence and reads what the other wrote (dt__shared_settle, dt__shared_doze). */
static inline __attribute__((unused)) uint32_t dt__shared_doze(dt__shared *s, const uint64_t *want)
{
    dt__rank_slot *t = dt__slot_of(s, s->me);
    uint32_t  bell = __atomic_load_n(&s->head->bell, __ATOMIC_ACQUIRE);
    for (int k = 0; k < DT__COUNTERS; k++) __atomic_store_n(&t->want[k], want[k], __ATOMIC_RELAXED);
    __atomic_store_n(&t->asleep, 1, __ATOMIC_RELEASE);
    __atomic_add_fetch(&s->head->sleepers, 1, __ATOMIC_SEQ_CST);
    DT__FENCE(&s->head->sleepers);
    return bell;
}
/* Ends the sleep of rank i. True for one caller only: this one must wake it. */
static inline __attribute__((unused)) bool dt__sleeper_claim(dt__shared *s, int i)
{
    if (!__atomic_exchange_n(&dt__slot_of(s, i)->asleep, 0, __ATOMIC_ACQ_REL)) return false;
    __atomic_sub_fetch(&s->head->sleepers, 1, __ATOMIC_RELAXED);
    return true;
}
static inline __attribute__((unused)) void dt__shared_rise(dt__shared *s) { (void)dt__sleeper_claim(s, s->me); }
/* Fingerprint of the fields that must be equal on all ranks. */
static inline __attribute__((unused)) uint64_t dt__frame_print(const dt__frame *f)
{
    uint64_t h = (uint64_t)f->count * UINT64_C(0x9e3779b97f4a7c15);
    h ^= (uint64_t)f->coll | (uint64_t)f->dtype << 8 | (uint64_t)f->op << 16 | (uint64_t)f->algo << 24 |
         (uint64_t)(uint32_t)f->root << 32;
    h = (h ^ h >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    h ^= f->seq * UINT64_C(0x94d049bb133111eb);
    return h ^ h >> 32;
}
static inline __attribute__((unused)) void dt__note_put(dt__note *ring, const dt__frame *f)
{
    dt__note *n = &ring[f->seq % DT__NOTES];
#if defined(__SANITIZE_THREAD__)
    __atomic_exchange_n(&n->seq, 0, __ATOMIC_ACQ_REL);
#else
    __atomic_store_n(&n->seq, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* the stores below stay after it */
#endif
    n->print = dt__frame_print(f);
    n->frame = *f;
    __atomic_store_n(&n->seq, f->seq + 1, __ATOMIC_RELEASE);
}
/* False: the operation has not begun, or its note was overwritten by a later one. */
static inline __attribute__((unused)) bool dt__note_get(const dt__note *ring, uint64_t seq, dt__frame *f)
{
    const dt__note *n = &ring[seq % DT__NOTES];
    if (__atomic_load_n(&n->seq, __ATOMIC_ACQUIRE) != seq + 1) return false;
    *f = n->frame;
    /* a different number now: the note was overwritten while it was copied */
    return __atomic_fetch_add((uint64_t *)(uintptr_t)&n->seq, 0, __ATOMIC_ACQ_REL) == seq + 1;
}
/* Threads access each other's vectors, and a caller may free its vector when its call has failed. So a thread that fails
   waits until no thread accesses them (dt__shared_untouched), and no thread starts to after a failure. False: a thread has
   failed. The wait has no deadline: an access ends after at most 1 MiB of reduction or copying without any wait, and a thread
   cannot be stopped alone (a program must not cancel or kill a thread inside a call). */
static inline __attribute__((unused)) bool dt__shared_touch(dt__shared *s)
{
    uint32_t *mine = &dt__slot_of(s, s->me)->touching;
    if (s->fd >= 0) return true;
    __atomic_exchange_n(mine, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&s->head->failing, __ATOMIC_SEQ_CST)) return true;
    __atomic_store_n(mine, 0, __ATOMIC_RELEASE);
    return false;
}
static inline __attribute__((unused)) void dt__shared_leave(dt__shared *s)
{
    if (s->fd < 0) __atomic_store_n(&dt__slot_of(s, s->me)->touching, 0, __ATOMIC_RELEASE);
}
static inline __attribute__((unused)) void dt__shared_untouched(dt__shared *s) /* after dt__shared_fail */
{
    for (int i = 0; s->fd < 0 && i < s->n; i++)
        while (i != s->me && __atomic_load_n(&dt__slot_of(s, i)->touching, __ATOMIC_SEQ_CST)) sched_yield();
}
static inline __attribute__((unused)) void dt__comm_copy(void *to, const void *from, size_t n) /* NULL is allowed if n == 0 */
{
    if (n) memcpy(to, from, n);
}

/* ---- transports */
typedef struct dt__transport_row {
    const char          *name;
    const dt__transport *transport; /* NULL: not in this program */
    const char          *missing;   /* what to do if it is not in this program */
    const char          *opener;    /* the call that opens it; NULL: dt_comm_init, by name */
} dt__transport_row;
DT__INSIDE void dt__transport_register(const dt__transport *t); /* fills the row of its name; constructors call it */
DT__INSIDE const dt__transport *dt__transport_get(const char *name); /* NULL: no row, or not in this program */
DT__INSIDE const dt__transport *dt__transport_auto(int reach);       /* what "auto" uses for these ranks */
/* The row that .transport or DT_COMM_TRANSPORT names. NULL: "auto", no name or an unknown name. */
DT__INSIDE const dt__transport_row *dt__transport_named(const dt_comm_opts *o);
/* The transport of a new communicator; *out NULL: "auto". 0, or negative after dt__comm_bad: it cannot be used. */
DT__INSIDE int dt__world_transport(const dt__world *w, const dt_comm_opts *o, const dt__transport **out);
DT__INSIDE void dt__pollset_add(dt__pollset *set, int fd, int events); /* without memory: a look every millisecond instead */
DT__INSIDE void dt__pollset_wait(const dt_comm *c, dt__pollset *set); /* also for c->wake_fd */
/* For the sockets of messages (dt_msg.h): options; how many of n bytes may be sent now (0: not before *ready); counting. */
DT__INSIDE void dt__tcp_tune_fd(dt_comm *c, int peer, int fd);
DT__INSIDE size_t dt__tcp_may_send(dt_comm *c, size_t n, int64_t *ready);
DT__INSIDE void dt__tcp_count_sent(dt_comm *c, size_t n, size_t of);
DT__INSIDE int dt__transport_status(const dt_comm *c); /* status of a communicator that has failed */
DT__INSIDE int dt__transport_fail(dt_comm *c, int status, int peer, const char *format, ...) DT__PRINTF(4, 5);

#ifdef __cplusplus
}
#endif
#endif /* DT__NET_INSIDE */

#if defined(DT_NET_IMPLEMENTATION) && !defined(DT__NET_IMPLEMENTED)
#define DT__NET_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__BASE_IMPLEMENTED)
#error "dt_net.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_NET_IMPLEMENTATION"
#endif
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/futex.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(NET);
DT__NEEDS(NET, BASE);

/* ==================================================================================================== >>basis
   Errors, the clock, and the failure of a communicator. */
#ifndef DT_STATIC
__thread const int64_t *dt__net_clock;
__thread void (*dt__net_pause)(int64_t ns);
#endif
DT__INSIDE int64_t dt__comm_now(void) /* ns */
{
    struct timespec t;
    if (dt__net_clock) return *dt__net_clock;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * DT__NS_PER_S + t.tv_nsec;
}
DT__INSIDE int64_t dt__comm_coarse(void)
{
    struct timespec t;
    if (dt__net_clock) return *dt__net_clock;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * DT__NS_PER_S + t.tv_nsec;
}
static void dt__world_report(const dt__world *w, int status, int rank, const char *text); /* >>rendezvous */
/* The communicator has failed; only the first call counts. Wakes its engine. Any thread. rank: in the communicator. */
DT__INSIDE void dt__comm_failed(dt_comm *c, int status, int rank, const char *text)
{
    if (__atomic_exchange_n(&c->failing, 1, __ATOMIC_ACQ_REL)) return;
    snprintf(c->text, sizeof c->text, "%s", text);
    c->failed_rank = rank;
    if (c->world) /* first: the program may end as soon as it sees the status, and the launcher would blame this rank */
        dt__world_report(c->world, status, c->member && rank >= 0 && rank < dt__comm_known(c) ? c->member[rank] : -1, text);
    __atomic_store_n(&c->status, status, __ATOMIC_RELEASE);
    uint64_t one = 1;
    if (c->wake_fd >= 0 && write(c->wake_fd, &one, sizeof one) < 0) return; /* the counter is full: nobody sleeps on it */
}

/* "rank 5 (host, pid 12) [rank 3 of this communicator]": messages name ranks of the world, as the log and the launcher do. */
DT__INSIDE const char *dt__comm_who(const dt_comm *c, int rank, bool host, char *buf, size_t nbytes)
{
    const dt__world *w = c->world;
    int              r = c->member ? c->member[rank] : rank;
    size_t           n = (size_t)snprintf(buf, nbytes, "rank %d", r);
    if (host && w && w->member && n < nbytes && w->member[r].host_name[0])
        n += (size_t)snprintf(buf + n, nbytes - n, " (%.64s, pid %" PRId64 ")", w->member[r].host_name, w->member[r].pid);
    if (r != rank && n < nbytes) snprintf(buf + n, nbytes - n, " [rank %d of this communicator]", rank);
    return buf;
}

/* The first failure in the segment counts for all ranks of this machine. If another rank is writing one, this rank waits for
   its text, but not for long: that rank may have been stopped in the middle. Then this rank goes on with its own text, and
   the control connections tell the others. */
enum { DT__FAIL_SPINS = 200, DT__FAIL_LOOKS = 500, DT__FAIL_LOOK_US = 100 }; /* together 50 ms or a little more */
static void dt__comm_fail_shared(dt_comm *c, int status, int rank, const char *text)
{
    dt__shared *s = (dt__shared *)c->shared;
    dt__shared_fail(s, status, rank, text);
    for (int i = 0; dt__comm_ok(c) && i < DT__FAIL_SPINS + DT__FAIL_LOOKS; i++) {
        if (i >= DT__FAIL_SPINS) usleep(DT__FAIL_LOOK_US);
        dt__comm_look(c);
    }
    if (dt__comm_ok(c)) dt__comm_failed(c, status, rank, text);
    DT__FENCE(&s->head->sleepers);
    dt__shared_wake(s);
}
/* ---- tolerant communicators. A member that goes is an event: who, why, when. Messages with it end with DT_COMM_ERR_PEER
   (dt_msg.h, dt__mail_members), collectives of all members end and are halted, everything else goes on.
   What dt__comm_fail means there:
     a collective has failed (timeout, different calls, a wrong argument)   collectives are halted, on all members
     this member cannot go on (memory, a descriptor), or dt_comm_abort      its communicator fails; for the others it has died
   A message that fails ends alone and does not come here. A peer that sends broken frames is expelled: dt__members_part. */
DT__INSIDE void dt__members_free(dt__members *g)
{
    if (!g) return;
    if (g->fd >= 0) close(g->fd);
    pthread_mutex_destroy(&g->lock);
    DT_COMM_FREE(g->how);
    DT_COMM_FREE(g->why);
    DT_COMM_FREE(g->event);
    DT_COMM_FREE(g);
}
DT__INSIDE dt__members *dt__members_new(int size, int room)
{
    dt__members *g = (dt__members *)dt__comm_zeroed(1, sizeof *g);
    if (!g) return NULL;
    pthread_mutex_init(&g->lock, NULL);
    g->room = room;
    g->start = g->size = size;
    g->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    g->how = (uint8_t *)dt__comm_zeroed((size_t)room, 1);
    g->why = (char(*)[DT__WHY])dt__comm_zeroed((size_t)room, sizeof *g->why);
    g->event = (dt_comm_event *)dt__comm_zeroed(2 * (size_t)room, sizeof *g->event);
    if (g->fd >= 0 && g->how && g->why && g->event) return g;
    dt__members_free(g);
    return NULL;
}
static void dt__comm_stir(dt_comm *c) /* wakes its engine */
{
    uint64_t    one = 1;
    dt__shared *s = (dt__shared *)__atomic_load_n(&c->shared, __ATOMIC_ACQUIRE);
    if (s) dt__shared_wake_self(s);
    if (c->wake_fd >= 0 && write(c->wake_fd, &one, sizeof one) < 0) return; /* the counter is full: it wakes anyway */
}
static void dt__members_event(dt_comm *c, int kind, int rank, const char *why) /* under the lock */
{
    dt__members     *g = c->members;
    uint64_t       one = 1;
    if (g->nevents == 2 * g->room) return; /* cannot be */
    dt_comm_event   *e = &g->event[(g->first + g->nevents++) % (2 * g->room)];
    struct timespec  t;
    memset(e, 0, sizeof *e);
    e->kind = kind;
    e->rank = rank;
    if (dt__net_clock) e->when = *dt__net_clock;
    else clock_gettime(CLOCK_REALTIME, &t), e->when = (int64_t)t.tv_sec * DT__NS_PER_S + t.tv_nsec;
    if (c->world && c->world->member) {
        const dt__member *m = &c->world->member[c->member[rank]];
        e->pid = m->pid;
        e->incarnation = m->incarnation;
        snprintf(e->host, sizeof e->host, "%s", m->host_name);
    } else {
        e->pid = (int64_t)getpid();
        if (c->shared) e->incarnation = dt__slot_of((dt__shared *)c->shared, rank)->incarnation;
    }
    snprintf(e->why, sizeof e->why, "%s", why);
    if (write(g->fd, &one, sizeof one) < 0) return; /* the counter is full: it is readable */
}
DT__INSIDE void dt__members_halt(dt_comm *c, int status, uint64_t from, const char *text)
{
    dt__members *g = c->members;
    if (__atomic_load_n(&g->halted, __ATOMIC_ACQUIRE) && __atomic_load_n(&g->halt_from, __ATOMIC_ACQUIRE) <= from) return;
    pthread_mutex_lock(&g->lock);
    if (!g->halted || from < g->halt_from) __atomic_store_n(&g->halt_from, from, __ATOMIC_RELEASE);
    if (!g->halted) { /* the first reason stays */
        snprintf(g->text, sizeof g->text, "%s", text);
        __atomic_store_n(&g->halted, status, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&g->lock);
    dt__comm_stir(c);
}
DT__INSIDE bool dt__members_gone(dt_comm *c, int rank, int how, uint64_t done, const char *why)
{
    dt__members *g = c->members;
    char       text[768];
    pthread_mutex_lock(&g->lock);
    bool news = !g->how[rank];
    if (news) {
        g->how[rank] = (uint8_t)how;
        snprintf(g->why[rank], sizeof g->why[rank], "%s", why);
        dt__members_event(c, how == DT__LEFT ? (int)DT_MEMBER_LEFT : (int)DT_MEMBER_DIED, rank, why);
        __atomic_add_fetch(&g->changes, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&g->lock);
    if (!news && how != DT__LEFT) return false;
    snprintf(text, sizeof text, "%.600s: dt_comm_shrink makes a communicator of the rest", why);
    dt__members_halt(c, DT_COMM_ERR_PEER, done, text); /* also if its number of collectives becomes known only now */
    if (news) dt__comm_stir(c);
    return news;
}
DT__INSIDE void dt__members_joined(dt_comm *c, int rank)
{
    dt__members *g = c->members;
    char         text[200], name[80];
    pthread_mutex_lock(&g->lock);
    bool news = rank == g->size && rank < g->room;
    if (news) {
        const char *called = c->world ? c->world->member[c->member[rank]].name
                             : c->shared ? dt__slot_of((dt__shared *)c->shared, rank)->name : "";
        snprintf(name, sizeof name, *called ? " as \"%.47s\"" : "%s", called);
        snprintf(text, sizeof text, "rank %d joined%s", rank, name);
        __atomic_store_n(&g->size, rank + 1, __ATOMIC_RELEASE);
        dt__members_event(c, DT_MEMBER_JOINED, rank, text);
        __atomic_add_fetch(&g->changes, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&g->lock);
    if (!news) return;
    snprintf(text, sizeof text, "rank %d has joined since: dt_comm_shrink makes a communicator of all members for collectives", rank);
    dt__members_halt(c, DT_COMM_ERR_STATE, 0, text);
    dt__comm_stir(c);
}
DT__INSIDE int dt__members_how(dt_comm *c, int rank, char *why, size_t nbytes)
{
    dt__members *g = c->members;
    pthread_mutex_lock(&g->lock);
    int how = g->how[rank];
    if (why) snprintf(why, nbytes, "%s", g->why[rank]);
    pthread_mutex_unlock(&g->lock);
    return how;
}
DT__INSIDE bool dt__members_next(dt_comm *c, dt_comm_event *out)
{
    dt__members *g = c->members;
    uint64_t   count;
    pthread_mutex_lock(&g->lock);
    bool any = g->nevents > 0;
    if (any) {
        *out = g->event[g->first];
        g->first = (g->first + 1) % (2 * g->room);
        if (--g->nevents == 0 && read(g->fd, &count, sizeof count) < 0) count = 0;
    }
    pthread_mutex_unlock(&g->lock);
    return any;
}
static int dt__members_fail(dt_comm *c, int status, int rank, const char *text) /* dt__comm_fail of a tolerant communicator */
{
    if (status == DT_COMM_ERR_MISMATCH || status == DT_COMM_ERR_TIMEOUT || status == DT_COMM_ERR_ARG) { /* of a collective */
        dt__members_halt(c, status, 0, text);
        if (c->world) dt__world_abort_id(c->world, c->id, status, rank, text);
        else if (c->shared) dt__shared_fail((dt__shared *)c->shared, status, rank, text), dt__shared_wake((dt__shared *)c->shared);
        return dt__comm_bad(status, "%s", text);
    }
    dt__comm_failed(c, status, rank, text);
    dt__members_part(c, c->rank, DT__DIED, text);
    return __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
}
DT__INSIDE int dt__comm_fail(dt_comm *c, int status, int rank, const char *format, ...)
{
    char    text[768];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    if (c->members) return dt__members_fail(c, status, rank, text);
    dt__comm_look(c);
    if (dt__comm_ok(c)) {
        if (c->shared) dt__comm_fail_shared(c, status, rank, text);
        else dt__comm_failed(c, status, rank, text);
        while (dt__comm_ok(c)) sched_yield(); /* another thread of this process writes its failure: it cannot be stopped alone */
        if (c->world) dt__world_abort(c->world, c, c->status, c->failed_rank, c->text);
    }
    return __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
}

DT__SLOW_BEGIN
/* ==================================================================================================== >>sockets
   Every descriptor is close-on-exec, every socket is non-blocking. Functions that wait use poll and a deadline (ns). */



DT__INSIDE bool dt__comm_random(void *buf, size_t nbytes)
{
    uint8_t *p = (uint8_t *)buf;
    while (nbytes > 0) {
        ssize_t got = getrandom(p, nbytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        p += got;
        nbytes -= (size_t)got;
    }
    return true;
}
static int dt__poll_ms(int64_t deadline) /* rounded up */
{
    int64_t left = deadline - dt__comm_now();
    return left <= 0 ? 0 : left > 60 * DT__NS_PER_S ? 60000 : (int)((left + DT__NS_PER_MS - 1) / DT__NS_PER_MS);
}
/* 1: ready, or an error that the next call on fd will return; 0: the deadline has passed */
static int dt__wait_fd(int fd, int events, int64_t deadline)
{
    for (;;) {
        struct pollfd p;
        p.fd = fd;
        p.events = (short)events;
        p.revents = 0;
        int n = poll(&p, 1, dt__poll_ms(deadline));
        if (n > 0) return 1;
        if (n < 0 && errno != EINTR) return 1;
        if (dt__comm_now() >= deadline) return 0;
    }
}
DT__INSIDE void dt__comm_pause(int64_t ns)
{
    int64_t deadline = dt__comm_now() + ns;
    if (dt__net_pause) {
        dt__net_pause(ns);
        return;
    }
    while (dt__comm_now() < deadline && poll(NULL, 0, dt__poll_ms(deadline)) < 0 && errno == EINTR) {}
}
DT__INSIDE void dt__close(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}
static const char *dt__addr_text(const dt__addr *a, char *buf, size_t nbytes)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (a->u.any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &a->u.v4.sin_addr, host, sizeof host);
        snprintf(buf, nbytes, "%s:%d", host, ntohs(a->u.v4.sin_port));
    } else if (a->u.any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &a->u.v6.sin6_addr, host, sizeof host);
        snprintf(buf, nbytes, "[%s]:%d", host, ntohs(a->u.v6.sin6_port));
    } else snprintf(buf, nbytes, "a Unix socket");
    return buf;
}
static const char *dt__peer_text(int fd, char *buf, size_t nbytes)
{
    dt__addr a;
    memset(&a, 0, sizeof a);
    a.n = sizeof a.u;
    if (getpeername(fd, &a.u.any, &a.n) != 0) snprintf(buf, nbytes, "a peer that has disconnected");
    else dt__addr_text(&a, buf, nbytes);
    return buf;
}
DT__INSIDE int dt__addr_port(const dt__addr *a)
{
    return ntohs(a->u.any.sa_family == AF_INET6 ? a->u.v6.sin6_port : a->u.v4.sin_port);
}
DT__INSIDE void dt__addr_set_port(dt__addr *a, int port)
{
    if (a->u.any.sa_family == AF_INET6) a->u.v6.sin6_port = htons((uint16_t)port);
    else a->u.v4.sin_port = htons((uint16_t)port);
}
static bool dt__addr_is_loopback(const dt__addr *a)
{
    if (a->u.any.sa_family == AF_INET) return ntohl(a->u.v4.sin_addr.s_addr) >> 24 == 127;
    return a->u.any.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&a->u.v6.sin6_addr);
}
DT__INSIDE bool dt__addr_is_any(const dt__addr *a)
{
    if (a->u.any.sa_family == AF_INET) return a->u.v4.sin_addr.s_addr == htonl(INADDR_ANY);
    return a->u.any.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&a->u.v6.sin6_addr);
}
DT__INSIDE void dt__addr_loopback(dt__addr *a, int port)
{
    memset(a, 0, sizeof *a);
    a->u.v4.sin_family = AF_INET;
    a->u.v4.sin_port = htons((uint16_t)port);
    a->u.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a->n = sizeof a->u.v4;
}
/* Checks and copies an address from the table of ranks or from a message. */
DT__INSIDE bool dt__addr_take(dt__addr *a, const uint8_t *bytes, uint32_t n)
{
    memset(a, 0, sizeof *a);
    if (n != sizeof a->u.v4 && n != sizeof a->u.v6) return false;
    memcpy(&a->u, bytes, n);
    a->n = (socklen_t)n;
    return a->u.any.sa_family == (n == sizeof a->u.v4 ? AF_INET : AF_INET6);
}
static void dt__addr_unix(dt__addr *a, const char *name) /* abstract: no file, it disappears with its owner */
{
    size_t n = strlen(name);
    memset(a, 0, sizeof *a);
    if (n > sizeof a->u.un.sun_path - 1) n = sizeof a->u.un.sun_path - 1;
    a->u.un.sun_family = AF_UNIX;
    memcpy(a->u.un.sun_path + 1, name, n);
    a->n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}
/* The status of an error of the system: not everything that fails while an argument is used is the argument's fault. */
static int dt__status_of(int e, int otherwise)
{
    return e == ENOMEM || e == ENOBUFS ? DT_COMM_ERR_MEMORY : e == EMFILE || e == ENFILE ? DT_COMM_ERR_NET : otherwise;
}
/* Resolves a host name. Returns the number of addresses (at most DT__ADDRS), or 0, *why and errno. */
#ifndef DT__GETADDRINFO /* tests replace it */
#define DT__GETADDRINFO getaddrinfo
#endif
static int dt__addr_look(const char *name, int flags, int port, dt__addr *out, const char **why)
{
    struct addrinfo hints, *list = NULL;
    int             n = 0;
    memset(&hints, 0, sizeof hints);
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    int e = DT__GETADDRINFO(name, NULL, &hints, &list);
    *why = e == EAI_SYSTEM ? strerror(errno) : gai_strerror(e);
    if (e != EAI_SYSTEM) errno = e == EAI_MEMORY ? ENOMEM : 0;
    if (e != 0) return 0;
    for (struct addrinfo *i = list; i && n < DT__ADDRS; i = i->ai_next) {
        if (i->ai_family != AF_INET && i->ai_family != AF_INET6) continue;
        memset(&out[n], 0, sizeof out[n]);
        memcpy(&out[n].u, i->ai_addr, i->ai_addrlen);
        out[n].n = i->ai_addrlen;
        dt__addr_set_port(&out[n++], port);
    }
    freeaddrinfo(list);
    if (n == 0) *why = "it has no IPv4 or IPv6 address";
    return n;
}
DT__INSIDE int dt__addr_find(const char *name, int port, dt__addr *out, const char **why)
{
    return dt__addr_look(name, 0, port, out, why);
}
/* The same within a deadline: getaddrinfo has none, so a thread calls it. If the thread is late, it is left behind: it uses
   only the memory of dt__lookup, which the last of the two frees. */
typedef struct dt__lookup {
    int32_t     refs, done; /* atomic */
    pthread_t   thread;
    int         wake[2];    /* a pipe: the thread closes its end when it is done */
    int         n, error, port;
    const char *why;
    char        text[128];
    dt__addr    addr[DT__ADDRS];
    char        name[256];
} dt__lookup;
static void dt__lookup_unref(dt__lookup *l)
{
    if (__atomic_sub_fetch(&l->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    dt__close(&l->wake[0]);
    DT_COMM_FREE(l);
}
static void *dt__lookup_main(void *arg)
{
    dt__lookup *l = (dt__lookup *)arg;
    const char *why = "";
    prctl(PR_SET_NAME, "dt lookup");
    l->n = dt__addr_look(l->name, 0, l->port, l->addr, &why);
    l->error = errno;
    snprintf(l->text, sizeof l->text, "%s", why); /* strerror's text belongs to this thread */
    __atomic_store_n(&l->done, 1, __ATOMIC_RELEASE);
    close(l->wake[1]);
    dt__lookup_unref(l);
    return NULL;
}
DT__INSIDE int dt__addr_find_by(const char *name, int port, dt__addr *out, const char **why, int64_t deadline)
{
    static __thread char text[128];
    sigset_t             all, old;
    int                  n = dt__addr_look(name, AI_NUMERICHOST, port, out, why);
    if (n > 0 || strlen(name) >= sizeof ((dt__lookup *)0)->name) return n; /* an address: nothing to wait for */
    dt__lookup *l = (dt__lookup *)DT_COMM_MALLOC(sizeof *l);
    *why = "out of memory";
    errno = ENOMEM;
    if (!l) return 0;
    memset(l, 0, sizeof *l);
    l->refs = 2;
    l->port = port;
    snprintf(l->name, sizeof l->name, "%s", name);
    if (syscall(SYS_pipe2, l->wake, O_CLOEXEC) != 0) {
        *why = strerror(errno);
        DT_COMM_FREE(l);
        return 0;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = pthread_create(&l->thread, NULL, dt__lookup_main, l);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e) { /* no thread: nothing can be looked up in time */
        close(l->wake[1]);
        l->refs = 1;
        dt__lookup_unref(l);
        *why = strerror(e);
        errno = e;
        return 0;
    }
    dt__wait_fd(l->wake[0], POLLIN, deadline);
    bool done = __atomic_load_n(&l->done, __ATOMIC_ACQUIRE);
    if (done) {
        pthread_join(l->thread, NULL);
        n = l->n;
        e = l->error;
        memcpy(out, l->addr, sizeof l->addr);
        snprintf(text, sizeof text, "%s", l->text);
    } else {
        pthread_detach(l->thread);
        n = 0;
        e = ETIMEDOUT;
        snprintf(text, sizeof text, "the name service gave no answer within the join timeout; use an address, or check the "
                                    "name service (getent hosts)");
    }
    dt__lookup_unref(l);
    *why = text;
    errno = e;
    return n;
}
/* The source address of this machine on the route to another one. */
DT__INSIDE bool dt__addr_route(const dt__addr *to, dt__addr *out)
{
    int  fd = socket(to->u.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool ok;
    memset(out, 0, sizeof *out);
    out->n = sizeof out->u;
    ok = fd >= 0 && connect(fd, &to->u.any, to->n) == 0 && getsockname(fd, &out->u.any, &out->n) == 0;
    dt__close(&fd);
    if (ok) dt__addr_set_port(out, 0);
    return ok;
}
static int dt__socket(int family) { return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }
static int dt__listen(const dt__addr *a) /* negative: see errno */
{
    int fd = dt__socket(a->u.any.sa_family), on = 1, e;
    if (fd < 0) return -1;
    if (a->u.any.sa_family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, &a->u.any, a->n) == 0 && listen(fd, 4096) == 0) return fd; /* the kernel takes less if it has to */
    e = errno;
    close(fd);
    errno = e;
    return -1;
}
/* After the handshake: small messages are sent at once, and keepalive detects a peer whose machine is down. */
static void dt__sock_tune(int fd, double timeout)
{
    int on = 1, ms = (int)(timeout > 1e6 ? 1000000000 : timeout < 1 ? 1000 : timeout * 1000);
    int idle = ms / 3000 > 0 ? ms / 3000 : 1, probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}
/* Starts a connection. It may still be in progress: a later send or receive returns its error. Negative: see errno. */
static int dt__connect(const dt__addr *a)
{
    int fd = dt__socket(a->u.any.sa_family), e;
    if (fd < 0) return -1;
    if (connect(fd, &a->u.any, a->n) == 0 || errno == EINPROGRESS) return fd;
    e = errno; /* EAGAIN: the queue of a Unix listener is full */
    close(fd);
    errno = e;
    return -1;
}
#ifndef DT__SEND_BYTES /* tests replace these two */
#define DT__SEND_BYTES(fd, ptr, nbytes) send(fd, ptr, nbytes, MSG_NOSIGNAL)
#define DT__RECV_BYTES(fd, ptr, nbytes) recv(fd, ptr, nbytes, 0)
#endif
/* Move bytes without waiting. 1: all have moved; 0: not yet; -1: the connection has ended (errno; 0: it was closed). */
static int dt__send_some(int fd, const void *buf, size_t nbytes, size_t *done)
{
    while (*done < nbytes) {
        ssize_t n = DT__SEND_BYTES(fd, (const char *)buf + *done, nbytes - *done);
        if (n > 0) *done += (size_t)n;
        else if (n < 0 && errno == EINTR) continue;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        else return -1;
    }
    return 1;
}
static int dt__recv_some(int fd, void *buf, size_t nbytes, size_t *done)
{
    while (*done < nbytes) {
        ssize_t n = DT__RECV_BYTES(fd, (char *)buf + *done, nbytes - *done);
        if (n > 0) *done += (size_t)n;
        else if (n < 0 && errno == EINTR) continue;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        else {
            if (n == 0) errno = 0;
            return -1;
        }
    }
    return 1;
}
static bool dt__same_user(int fd) /* the process at the other end of a Unix socket belongs to this user */
{
    struct { /* struct ucred, which libc declares only with _GNU_SOURCE */
        pid_t pid;
        uid_t uid;
        gid_t gid;
    } u;
    socklen_t n = sizeof u;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &u, &n) == 0 && u.uid == geteuid();
}

/* ==================================================================================================== >>handshake
   Three messages of fixed size on every socket. S is the accepting side, C the dialing side:
       S to C  magic, version, job, epoch, nonce
       C to S  magic, version, job, epoch, comm, rank, world, to, kind, stream, nonce, HMAC("dt1 c", both messages)
       S to C  status, the reason if it refuses, the number of a rank that came without one, HMAC("dt1 s", all three)
   The labels prevent reflection, the nonces replay; the epoch rejects ranks of an earlier start, 'to' a relay to another
   rank. The accepting side sends a reason only to a peer that knows the token; for any other peer it closes the socket.
   So only DT__SHAKE_DONE and DT__SHAKE_REFUSED are answers of a rank of the job. All other results can come from a stranger
   or from a busy rank: the dialing side tries again until its deadline.
   Callers: the joining thread while it dials (dt__dial), the control thread for all other sockets. A step never waits and
   allocates nothing. */
static void dt__shake_mac(const dt__shake *h, bool reply, uint8_t out[32])
{
    dt__hmac m;
    dt__hmac_begin(&m, h->token, 32);
    dt__hmac_add(&m, reply ? "dt1 s" : "dt1 c", 5);
    dt__hmac_add(&m, &h->s, sizeof h->s);
    dt__hmac_add(&m, &h->c, reply ? sizeof h->c : offsetof(dt__hello_c, mac));
    if (reply) dt__hmac_add(&m, &h->r, offsetof(dt__hello_r, mac));
    dt__hmac_end(&m, out);
}
static uint64_t dt__roles(const dt__world *w) /* how many ranks of each role; 0: the ranks came with their numbers */
{
    return (uint64_t)(uint32_t)w->workers << 32 | (uint32_t)w->servers;
}
static const char *dt__rank_word(int rank, char *buf, size_t nbytes) /* of this process or of one that dials it */
{
    const char *word = rank == DT__RANK_WORKER ? "a worker" : rank == DT__RANK_SERVER ? "a server" : "a new rank";
    if (rank >= 0) snprintf(buf, nbytes, "rank %d", rank);
    else snprintf(buf, nbytes, "%s", word);
    return buf;
}
static bool dt__shake_server(dt__shake *h, const dt__world *w) /* false: the kernel gave no random numbers */
{
    memset(h, 0, sizeof *h);
    h->server = true;
    memcpy(h->token, w->token, 32);
    h->s.magic = DT__SHAKE_MAGIC;
    h->s.version = DT__SHAKE_VERSION;
    memcpy(h->s.job, w->job, 16);
    h->s.epoch = w->epoch;
    return dt__comm_random(h->s.nonce, 32);
}
static bool dt__shake_client(dt__shake *h, const dt__world *w, int to, int kind, uint64_t comm, int stream)
{
    memset(h, 0, sizeof *h);
    memcpy(h->token, w->token, 32);
    /* a rank that registers first does not know the id of the job */
    h->any_job = (kind == DT__KIND_REGISTER || kind == DT__KIND_JOIN) && !w->control;
    h->c.magic = DT__SHAKE_MAGIC;
    h->c.version = DT__SHAKE_VERSION;
    memcpy(h->c.job, w->job, 16);
    h->c.epoch = w->epoch;
    h->c.comm = comm;
    h->c.rank = w->rank;
    h->c.world = w->start ? w->start : w->size;
    h->c.zero = w->room > w->start ? w->room : 0;
    h->c.to = to;
    h->c.kind = kind;
    h->c.stream = stream;
    return dt__comm_random(h->c.nonce, 32);
}
/* Receives a message. 1: all of it; 0: not yet; negative: failed. Wrong magic bytes are rejected before the rest comes. */
static int dt__shake_recv(dt__shake *h, int fd, void *buf, size_t nbytes)
{
    int            got = dt__recv_some(fd, buf, nbytes, &h->done);
    const uint8_t *p = (const uint8_t *)buf;
    for (size_t i = 0; i < 4 && i < h->done; i++)
        if (p[i] != (uint8_t)((uint32_t)DT__SHAKE_MAGIC >> (8 * i))) return DT__SHAKE_NOT_DT;
    if (got < 0) return DT__SHAKE_NET;
    if (got == 1) h->done = 0, h->state++;
    return got;
}
static int dt__shake_send(dt__shake *h, int fd, const void *buf, size_t nbytes)
{
    int got = dt__send_some(fd, buf, nbytes, &h->done);
    if (got < 0) return DT__SHAKE_NET;
    if (got == 1) h->done = 0, h->state++;
    return got;
}
static void dt__shake_reply(dt__shake *h, int status, const char *text)
{
    memset(&h->r, 0, sizeof h->r);
    h->r.magic = DT__SHAKE_MAGIC;
    h->r.status = status;
    h->r.rank = status ? 0 : h->number;
    snprintf(h->r.text, sizeof h->r.text, "%s", text);
    dt__shake_mac(h, true, h->r.mac);
    h->state = DT__SHAKE_AT_R;
}
static int dt__shake_step_server(dt__shake *h, int fd)
{
    int     got;
    uint8_t mac[32];
    if (h->state == DT__SHAKE_AT_S && (got = dt__shake_send(h, fd, &h->s, sizeof h->s)) != 1) return got;
    if (h->state == DT__SHAKE_AT_C) {
        if ((got = dt__shake_recv(h, fd, &h->c, sizeof h->c)) != 1) return got;
        dt__shake_mac(h, false, mac);
        if (!dt__same_secret(mac, h->c.mac, 32)) return DT__SHAKE_AUTH;
        return DT__SHAKE_DECIDE;
    }
    if (h->state == DT__SHAKE_AT_R && (got = dt__shake_send(h, fd, &h->r, sizeof h->r)) != 1) return got;
    return h->state != DT__SHAKE_AT_END ? DT__SHAKE_AGAIN : h->r.status ? DT__SHAKE_REFUSED : DT__SHAKE_DONE;
}
/* The accepting side closed the connection after its first message. It has another version or, probably, another token. */
static int dt__shake_closed(const dt__shake *h, int got)
{
    if (got != DT__SHAKE_NET || (errno != 0 && errno != ECONNRESET && errno != EPIPE)) return got;
    return h->s.version == DT__SHAKE_VERSION ? DT__SHAKE_AUTH : DT__SHAKE_BAD_VERSION;
}
static int dt__shake_step_client(dt__shake *h, int fd)
{
    int     got;
    uint8_t mac[32];
    if (h->state == DT__SHAKE_AT_S) {
        if ((got = dt__shake_recv(h, fd, &h->s, sizeof h->s)) != 1) return got;
        if (h->any_job) memcpy(h->c.job, h->s.job, 16);
        if (h->s.version == DT__SHAKE_VERSION) { /* a peer of another version still gets our message: it can refuse it */
            if (memcmp(h->c.job, h->s.job, 16) != 0 || h->s.epoch < h->c.epoch) return DT__SHAKE_BAD_JOB;
        }
        dt__shake_mac(h, false, h->c.mac);
    }
    if (h->state == DT__SHAKE_AT_C) {
        if ((got = dt__shake_send(h, fd, &h->c, sizeof h->c)) < 0) return dt__shake_closed(h, got);
        if (got == 0) return got;
        h->state = DT__SHAKE_AT_R;
    }
    if ((got = dt__shake_recv(h, fd, &h->r, sizeof h->r)) != 1) return dt__shake_closed(h, got);
    dt__shake_mac(h, true, mac);
    if (!dt__same_secret(mac, h->r.mac, 32)) return h->s.version == DT__SHAKE_VERSION ? DT__SHAKE_AUTH : DT__SHAKE_BAD_VERSION;
    h->r.text[sizeof h->r.text - 1] = 0;
    if (h->r.status) return DT__SHAKE_REFUSED;
    return h->s.version == DT__SHAKE_VERSION ? DT__SHAKE_DONE : DT__SHAKE_BAD_VERSION;
}
static int dt__shake_step(dt__shake *h, int fd)
{
    return h->server ? dt__shake_step_server(h, fd) : dt__shake_step_client(h, fd);
}
static int dt__shake_events(const dt__shake *h)
{
    if (h->server) return h->state == DT__SHAKE_AT_C ? POLLIN : POLLOUT;
    return h->state == DT__SHAKE_AT_C ? POLLOUT : POLLIN;
}

/* ==================================================================================================== >>rendezvous
   Runs in the thread that calls dt_comm_init; at rank 0 the control thread (>>control) answers the other ranks.
   1. Rank 0 listens. The other ranks dial it, and each sends its row of the table of ranks.
   2. When all rows are there, rank 0 sends the whole table to each rank.
   3. Each rank dials its parent in the control tree.
   4. The world is joined when a first meeting has gone up and down the tree.
   A rank keeps the connection over which it has registered until 4: so rank 0 learns at once that a rank died, and the
   rank that rank 0 did.

   Relays: from DT__RELAY_FROM ranks on rank 0 does not keep a connection to each of the n ranks. It keeps those to its
   children in the tree and to the first sqrt(n) other ranks that come. It takes the row of each later rank, names one of
   those ranks to it, and closes. The rank registers with that rank, its relay, and waits there. A relay passes on: rows and
   the news that a rank has died to rank 0, everything that rank 0 says to its ranks. Every rank can be a relay. */
static void dt__member_clean(dt__member *m); /* ends its texts */
static void dt__control_wake(dt__world *w);
static int  dt__control_start(dt__world *w); /* negative: see errno */
static void dt__control_end(dt__world *w);
static int  dt__control_adopt(dt__world *w, int fd,
                              int peer); /* hands the connection to the parent over to the control thread */
static int  dt__control_register(dt__world *w, int fd, int peer); /* ... the one over which this rank has registered */
static int  dt__control_wait_joined(dt__world *w, char *text, size_t nbytes); /* DT__JOIN_... */
static void dt__control_registered(dt__world *w); /* closes it: the control tree replaces it */
static int  dt__meet(dt__world *w, int64_t value, dt__cmeet *out, int64_t deadline, char *text, size_t nbytes);

/* ---- descriptors */
#ifndef DT__RELAY_FROM /* tests replace it */
#define DT__RELAY_FROM 512
#endif
static int dt__relays(int size) /* connections that rank 0 keeps beside those to its children; 0: all */
{
    int k = 1;
    while (k < size / k + (size % k > 0)) k++;
    return size < DT__RELAY_FROM ? 0 : k;
}
/* Descriptors that a rank needs to join and to make a communicator: connections of the tree, connections of ranks that
   register here, and about 40 more: listeners, eventfds, shared memory, ranks that fetch its descriptor, handshakes. */
static int dt__world_fds(int rank, int size)
{
    int others = size - 1, tree = others < DT__TREE ? others : (int)DT__TREE, relays = dt__relays(size);
    if (rank == 0 && !relays) return others + 40;
    return tree + relays + 40;
}
static int dt__fds_open(void) /* by this process; about 16 if it cannot be known */
{
    DIR *d = opendir("/proc/self/fd");
    int  n = d ? -3 : 16; /* ".", "..", and that of the directory itself */
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    else if (errno == EMFILE) n = INT_MAX / 2;
    return n;
}
/* The most descriptors that this process can have; if it is less than need, the limit is raised to the hard limit first. */
static int64_t dt__fds_limit(int64_t need)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r)) return need;
    if (r.rlim_cur < (rlim_t)need && r.rlim_cur < r.rlim_max) {
        rlim_t before = r.rlim_cur;
        r.rlim_cur = r.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &r)) r.rlim_cur = before;
    }
    return r.rlim_cur < (rlim_t)INT_MAX ? (int64_t)r.rlim_cur : INT_MAX;
}
/* Makes sure that this process can open so many more descriptors. Returns how many it can open beyond that; negative after
   dt__comm_bad: the hard limit is too low. */
static int dt__fds_ensure(const char *call, const char *what, int more)
{
    int64_t open = dt__fds_open(), need = open + more, limit = dt__fds_limit(need);
    if (limit >= need) return (int)(limit - need);
    if (open > limit) need = limit + more; /* as many as could be counted */
    return dt__comm_bad(DT_COMM_ERR_NET,
                        "%s: %s needs %" PRId64 " file descriptors, but the limit of this process is %" PRId64
                        ": raise it (ulimit -n %" PRId64 ", as root if the hard limit is lower) or use fewer ranks",
                        call, what, need, limit, need);
}

/* ---- the environment */
/* Reads a variable that must be a number. 1: read; 0: not set; negative after dt__comm_bad. */
DT__INSIDE int dt__env_int(const char *name, int64_t low, int64_t high, int64_t *out)
{
    const char *s = getenv(name), *p = s;
    int64_t     v = 0;
    if (!s) return 0;
    bool minus = *p == '-';
    p += minus;
    bool ok = *p != 0;
    for (; ok && *p; p++) {
        ok = *p >= '0' && *p <= '9' && v < INT64_MAX / 10 - 10;
        if (ok) v = v * 10 + (*p - '0');
    }
    if (minus) v = -v;
    if (ok && v >= low && v <= high) {
        *out = v;
        return 1;
    }
    return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: %s is '%.40s', expected a number from %" PRId64 " to %" PRId64,
                        name, s, low, high);
}
static int dt__env_seconds(const char *name, double *out)
{
    const char *s = getenv(name);
    char       *end;
    if (!s) return 0;
    double v = strtod(s, &end);
    if (*s && !*end && v > 0 && v < 1e7 && *s != ' ') {
        *out = v;
        return 1;
    }
    return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: %s is '%.40s', expected seconds above 0", name, s);
}
static int dt__env_missing(const char *name, const char *other)
{
    return dt__comm_bad(
        DT_COMM_ERR_ARG,
        "dt_comm_init: %s is not set, but %s is; set both, or RANK and WORLD_SIZE, or neither for a world of one", name,
        other);
}
/* Reads rank and world from the variables of one launcher. 1: read; 0: another launcher started this; negative: failed. */
static int dt__config_launcher(dt__config *f, const char *rank, const char *size, const char *local_rank,
                               const char *local_size)
{
    int64_t v = 0;
    int     got = dt__env_int(size, 1, DT__WORLD_MAX, &v);
    if (got < 0) return got;
    if (got == 0) return getenv(rank) ? dt__env_missing(size, rank) : 0;
    f->world = (int)v;
    if ((got = dt__env_int(rank, 0, f->world - 1, &v)) < 0) return got;
    if (got == 0) return dt__env_missing(rank, size);
    f->rank = (int)v;
    if (local_size) {
        if ((got = dt__env_int(local_size, 1, f->world, &v)) < 0) return got;
        if (got) f->local_world = (int)v;
    }
    if (local_rank && (got = dt__env_int(local_rank, 0, (f->local_world ? f->local_world : f->world) - 1, &v)) < 0)
        return got;
    return 1;
}
/* ps-lite's variables. The rank of a worker or a server is its role, until the scheduler, rank 0, gives it a number. */
static int dt__config_dmlc(dt__config *f)
{
    static const char *const name[2] = { "DMLC_NUM_WORKER", "DMLC_NUM_SERVER" };
    const char *role = getenv("DMLC_ROLE");
    int64_t     n[2] = { 0, 0 };
    if (!role) return dt__env_missing("DMLC_ROLE", name[0]);
    f->rank = !strcmp(role, "scheduler") ? 0
              : !strcmp(role, "worker")  ? DT__RANK_WORKER
              : !strcmp(role, "server")  ? DT__RANK_SERVER
                                         : -1;
    if (f->rank == -1)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: DMLC_ROLE is '%.40s', expected scheduler, server or worker", role);
    for (int i = 0; i < 2; i++) {
        int got = dt__env_int(name[i], i == 0, DT__WORLD_MAX - 1, &n[i]);
        if (got <= 0) return got < 0 ? got : dt__env_missing(name[i], "DMLC_ROLE");
    }
    if (n[0] + n[1] + 1 > DT__WORLD_MAX)
        return dt__comm_bad(DT_COMM_ERR_ARG,
                            "dt_comm_init: DMLC_NUM_WORKER is %" PRId64 " and DMLC_NUM_SERVER is %" PRId64
                            ": with the scheduler there are %" PRId64 " ranks, expected at most %d",
                            n[0], n[1], n[0] + n[1] + 1, DT__WORLD_MAX);
    if (f->rank == DT__RANK_SERVER && n[1] == 0)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: DMLC_ROLE is 'server', but DMLC_NUM_SERVER is 0");
    f->workers = (int)n[0];
    f->servers = (int)n[1];
    f->world = f->workers + f->servers + 1;
    return 0;
}
/* Finds rank and world. id: a string that only the ranks of this job share (for the Unix socket), or "". */
static int dt__config_who(dt__config *f, const dt_comm_opts *o, char *id, size_t nbytes)
{
    int64_t nodes = 0;
    id[0] = 0;
    if (o->world != 0) {
        snprintf(f->where, sizeof f->where, "options");
        if (o->world < 1 || o->world > DT__WORLD_MAX)
            return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: .world is %d, expected 1 to %d", o->world,
                                DT__WORLD_MAX);
        if (o->rank < 0 || o->rank >= o->world)
            return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: .rank is %d, expected 0 to %d", o->rank, o->world - 1);
        if (o->local_world < 0 || o->local_world > o->world)
            return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: .local_world is %d, expected 0 to %d", o->local_world,
                                o->world);
        f->rank = o->rank;
        f->world = o->world;
        f->local_world = o->local_world;
        return 0;
    }
    int i = dt__launcher();
    if (i == DT__BY_DMLC) {
        snprintf(f->where, sizeof f->where, "DMLC_ROLE");
        return dt__config_dmlc(f);
    }
    if (i >= 0) {
        const char *by = dt__launcher_name(i, DT__LAUNCHER_RANK);
        int         got = dt__config_launcher(f, by, dt__launcher_name(i, DT__LAUNCHER_SIZE),
                                              dt__launcher_name(i, DT__LAUNCHER_LOCAL_RANK),
                                              dt__launcher_name(i, DT__LAUNCHER_LOCAL_SIZE));
        if (got < 0) return got;
        snprintf(f->where, sizeof f->where, "%s", i == DT__BY_RANK ? "RANK and WORLD_SIZE" : by);
        const char *a = NULL, *b = NULL;
        if (i == DT__BY_OMPI) {
            a = getenv("PMIX_NAMESPACE");
            if (!a) a = getenv("OMPI_MCA_ess_base_jobid");
        } else if (i >= DT__BY_PMIX) {
            const char *n = getenv("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
            if ((got = dt__env_int(n, 1, INT_MAX, &nodes)) < 0) return got;
            if (got && nodes == 1) f->local_world = f->world;
            a = getenv("SLURM_JOB_ID");
            b = getenv("SLURM_STEP_ID");
        }
        if (a) snprintf(id, nbytes, "%s %.80s %.80s", by, a, b ? b : "");
        else if (i == DT__BY_OMPI || i == DT__BY_PMI) snprintf(id, nbytes, "%s parent %d", by, (int)getppid());
        return 0;
    }
    snprintf(f->where, sizeof f->where, "no launcher: a world of one");
    f->world = f->local_world = 1;
    return 0;
}
static int dt__config_times(dt__config *f, const dt_comm_opts *o)
{
    int64_t v = 0;
    int     got;
    f->timeout = 30;
    f->join_timeout = 120;
    if (o->timeout < 0 || o->join_timeout < 0 || isnan(o->timeout) || isnan(o->join_timeout))
        return dt__comm_bad(DT_COMM_ERR_ARG,
                            "dt_comm_init: .timeout is %g and .join_timeout %g, expected seconds, or 0 for the default",
                            o->timeout, o->join_timeout);
    if (o->timeout == 0 && dt__env_seconds("DT_COMM_TIMEOUT", &f->timeout) < 0) return -1;
    if (o->timeout > 0) f->timeout = o->timeout;
    if (o->join_timeout > 0) f->join_timeout = o->join_timeout;
    if (f->timeout > 1e7) f->timeout = 1e7;
    if (f->join_timeout > 1e7) f->join_timeout = 1e7;
    f->deadline = dt__comm_now() + dt__ns_of(f->join_timeout);
    if (o->epoch == 0 && dt__env_int("DT_RESTART", 0, INT64_MAX / 20, &v) < 0) return -1;
    f->epoch = o->epoch ? o->epoch : v;
    if ((got = dt__env_int("DT_REPORT_FD", 1, INT_MAX, &v)) < 0) return got;
    if (got && o->world == 0) f->report_fd = (int)v;
    return 0;
}
/* The first host of a Slurm node list: "n[07-12,20]-ib,login" gives n07-ib. False: the list is empty, or the name is too
   long. */
static bool dt__slurm_first(const char *list, char *out, size_t nbytes)
{
    size_t n = 0;
    bool   in = false, take = true;
    for (; *list && (in || *list != ','); list++) {
        if (*list == '[' || *list == ']') {
            in = *list == '[';
            take = true;
            continue;
        }
        if (in && (*list == '-' || *list == ',')) take = false; /* skip the other numbers in the brackets */
        if (!take) continue;
        if (n + 1 >= nbytes) return false;
        out[n++] = *list;
    }
    out[n] = 0;
    return n > 0 && !in;
}
/* Slurm on several machines: rank 0 is on the first of them; the port is derived from the job id. */
static void dt__config_slurm(dt__config *f)
{
    const char *list = getenv("SLURM_STEP_NODELIST"), *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
    if (!list) list = getenv("SLURM_JOB_NODELIST");
    if (!list || !job || !getenv("SLURM_NTASKS") || f->local_world == f->world) return;
    if (!f->host[0] && !dt__slurm_first(list, f->host, sizeof f->host)) f->host[0] = 0;
    uint32_t h = 0;
    for (const char *p = job; *p; p++) h = h * 31 + (uint8_t)*p;
    for (const char *p = step ? step : ""; *p; p++) h = h * 31 + (uint8_t)*p;
    if (f->host[0] && !f->port) f->port = 16384 + (int)(h % 16384); /* below the ephemeral ports */
}
/* The address of rank 0 is a name that means loopback on this machine: Debian's /etc/hosts has 127.0.1.1 for the machine's own
   name. Rank 0 would listen where ranks of other machines cannot reach it. */
static int dt__config_own_name(const dt__config *f, const char *from)
{
    dt__addr    a[DT__ADDRS];
    const char *why = "";
    char        at[80];
    if (strstr(f->host, "localhost") || dt__addr_look(f->host, AI_NUMERICHOST, 0, a, &why) > 0) return 0; /* meant so */
    dt__addr_text(&f->addr[0], at, sizeof at);
    if (f->local_world > 0)
        return dt__comm_bad(DT_COMM_ERR_JOIN,
                            "dt_comm_init: %s is '%.100s', which is %s on this machine, a loopback address, but only %d of "
                            "the %d ranks are here: set it to the address of rank 0 in the network (hostname -I), or remove the "
                            "name from the line of 127.0.1.1 or 127.0.0.1 in /etc/hosts",
                            from, f->host, at, f->local_world, f->world);
    if (f->rank == 0 && f->addr[0].u.any.sa_family == AF_INET && ntohl(f->addr[0].u.v4.sin_addr.s_addr) == 0x7f000101)
        dt__logf(2,
                 "%s is '%.100s', which is %s on this machine (an entry of /etc/hosts): ranks of other machines cannot reach "
                 "it; if there are any, set %s to the address in the network (hostname -I)",
                 from, f->host, at, from);
    return 0;
}
/* Where rank 0 is. */
static int dt__config_master(dt__config *f, const dt_comm_opts *o, const char *id)
{
    const char *host = o->addr, *agent = getenv("TORCHELASTIC_USE_AGENT_STORE"), *why = "", *from = ".addr";
    const char *host_name = f->workers ? "DMLC_PS_ROOT_URI" : "MASTER_ADDR";
    const char *port_name = f->workers ? "DMLC_PS_ROOT_PORT" : "MASTER_PORT";
    int64_t     v = 0;
    int         got;
    f->listen_fd = -1;
    if (o->listen_fd > 0) f->listen_fd = o->listen_fd;
    else if (f->rank == 0 && o->world == 0) {
        if ((got = dt__env_int("DT_LISTEN_FD", 0, INT_MAX, &v)) < 0) return got;
        if (got) f->listen_fd = (int)v;
    }
    dt__addr at;
    memset(&at, 0, sizeof at);
    at.n = sizeof at.u;
    if (o->port < 0 || o->port > 65535)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: .port is %d, expected 1 to 65535", o->port);
    if (o->port) f->port = o->port;
    else if ((got = dt__env_int("DT_PORT", 1, 65535, &v)) != 0) {
        if (got < 0) return got;
        f->port = (int)v;
    } else if ((got = dt__env_int(port_name, 1, 65535, &v)) != 0) {
        if (got < 0) return got;
        f->port = (int)v;
        if (!f->workers && agent && strcmp(agent, "True") == 0 && ++f->port > 65535)
            return dt__comm_bad(DT_COMM_ERR_ARG,
                                "dt_comm_init: MASTER_PORT is '65535': torchrun's agent occupies it, and dt would use "
                                "the next port, which does not exist; set DT_PORT");
    }
    if (!f->port && f->listen_fd >= 0 && getsockname(f->listen_fd, &at.u.any, &at.n) == 0) f->port = dt__addr_port(&at);
    if (!host || !*host) host = getenv(from = "DT_ADDR");
    if (!host || !*host) host = getenv(from = host_name);
    if (host && strlen(host) >= sizeof f->host)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: %s has %zu bytes, expected fewer than 256", from,
                            strlen(host));
    snprintf(f->host, sizeof f->host, "%s", host ? host : "");
    if (strcmp(f->where, "SLURM_PROCID") == 0 || strcmp(f->where, "PMIX_RANK") == 0) {
        if (!f->host[0]) from = "SLURM_STEP_NODELIST";
        dt__config_slurm(f);
    }
    f->local = f->local_world == f->world;
    if (f->host[0]) {
        f->naddr = dt__addr_find_by(f->host, f->port, f->addr, &why, f->deadline);
        if (f->naddr == 0)
            return dt__comm_bad(dt__status_of(errno, DT_COMM_ERR_JOIN),
                                "dt_comm_init: %s is '%.100s': %s; set MASTER_ADDR to an address of rank 0's machine that "
                                "this machine can reach", from, f->host, why);
        bool loop = true;
        for (int i = 0; i < f->naddr; i++) loop = loop && dt__addr_is_loopback(&f->addr[i]);
        if (loop && !f->local && (got = dt__config_own_name(f, from)) < 0) return got;
        if (f->local && !loop) { /* all ranks are on this machine: other machines need not see the port */
            dt__addr_loopback(&f->addr[0], f->port);
            f->naddr = 1;
        }
        f->local = f->local || loop;
    } else if (f->listen_fd >= 0 || (f->port && f->local)) {
        dt__addr_loopback(&f->addr[0], f->port);
        f->naddr = 1;
    }
    if (f->naddr && (f->port || f->listen_fd >= 0)) return 0;
    if (f->local && id[0]) return 0; /* the address comes from the ticket, by the Unix socket */
    const char *what = f->naddr ? "port" : "address";
    if (strcmp(f->where, "options") == 0)
        return dt__comm_bad(DT_COMM_ERR_ARG,
                            "dt_comm_init: .world is %d, but the %s of rank 0 is unknown: set .addr and .port",
                            f->world, what);
    return dt__comm_bad(DT_COMM_ERR_ARG,
                        "dt_comm_init: rank and world come from %s, but the %s of rank 0 is unknown: %s is not set; set "
                        "%s and %s, or DT_ADDR and DT_PORT",
                        f->where, what, f->naddr ? port_name : host_name, host_name, port_name);
}

/* ---- the token */
enum { DT__TOKEN_TEXT = 80 }; /* more bytes than a file with a token has */
static bool dt__token_parse(const uint8_t *p, size_t n, uint8_t token[32]) /* 32 bytes, or 64 hexadecimal digits */
{
    if (n == 32) {
        memcpy(token, p, 32);
        return true;
    }
    while (n > 64 && (p[n - 1] == '\n' || p[n - 1] == '\r' || p[n - 1] == ' ')) n--;
    bool hex = n == 64;
    for (int i = 0; hex && i < 64; i++) {
        int c = p[i], v = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        hex = v >= 0;
        if (hex) token[i / 2] = (uint8_t)(i % 2 ? token[i / 2] << 4 | v : v);
    }
    return hex;
}
/* Closes fd, also if it fails. A file is read from its beginning and its offset stays, for a program that inherits fd. A pipe
   may stay open for writing, so only 32 bytes are read from it. */
static int dt__token_read_fd(int fd, const char *name, uint8_t token[32])
{
    uint8_t     buf[DT__TOKEN_TEXT];
    size_t      n = 0, most = sizeof buf;
    int64_t     deadline = dt__comm_now() + 5 * DT__NS_PER_S;
    bool        file = true;
    int         e = 0;
    const char *holds = "";
    while (n < most) {
        ssize_t got = file ? pread(fd, buf + n, most - n, (off_t)n) : read(fd, buf + n, most - n);
        if (got > 0) n += (size_t)got;
        else if (got == 0) break;
        else if (errno == ESPIPE && file) {
            file = false;
            most = 32;
        } else if (errno == EAGAIN && !file) {
            if (dt__wait_fd(fd, POLLIN, deadline)) continue;
            holds = " after 5 s";
            break;
        } else if (errno != EINTR) {
            e = errno;
            break;
        }
        if (!file && n < most && !dt__wait_fd(fd, POLLIN, deadline)) {
            holds = " after 5 s";
            break;
        }
    }
    close(fd);
    if (e) return dt__comm_bad(dt__status_of(e, DT_COMM_ERR_ARG), "dt_comm_init: %s is %d: %s", name, fd, strerror(e));
    if (dt__token_parse(buf, n, token)) return 1;
    return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: %s is %d: it holds %s%zu bytes%s, expected a token of 32%s", name, fd,
                        n == sizeof buf ? "at least " : "", n, holds, file ? ", or 64 hexadecimal digits" : "");
}
static int dt__token_read_file(const char *path, const char *name, uint8_t token[32])
{
    struct stat s;
    uint8_t     buf[DT__TOKEN_TEXT];
    int         fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    ssize_t     n;
    if (fd < 0 || fstat(fd, &s) != 0) {
        int e = errno;
        dt__close(&fd);
        return dt__comm_bad(dt__status_of(e, DT_COMM_ERR_ARG), "dt_comm_init: %s is '%.200s': %s", name, path,
                            e == ELOOP ? "it is a symbolic link, expected the file itself" : strerror(e));
    }
    const char *bad = !S_ISREG(s.st_mode)     ? "it is not a regular file"
                      : s.st_uid != geteuid() ? "it belongs to another user"
                      : (s.st_mode & 077)     ? "others may read or write it; chmod 600 it"
                                              : NULL;
    n = bad ? 0 : read(fd, buf, sizeof buf);
    dt__close(&fd);
    if (bad) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: %s is '%.200s': %s", name, path, bad);
    if (n >= 0 && dt__token_parse(buf, (size_t)n, token)) return 1;
    return dt__comm_bad(DT_COMM_ERR_ARG,
                        "dt_comm_init: %s is '%.200s': it holds %zd bytes, expected 32, or 64 hexadecimal digits", name,
                        path, n);
}
/* 1: a token was given; 0: no token; negative: failed. DT_TOKEN_FD is read once in a process; a second world gets the
   same token. */
static int dt__token_given(const dt_comm_opts *o, uint8_t token[32])
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int64_t         kept_fd = -1;
    static int             kept_status;
    static uint8_t         kept[32];
    int64_t                fd = 0;
    const char            *path = o->token_file;
    if (o->token_fd > 0) return dt__token_read_fd(o->token_fd, ".token_fd", token);
    if (path && *path) return dt__token_read_file(path, ".token_file", token);
    int got = dt__env_int("DT_TOKEN_FD", 0, INT_MAX, &fd);
    if (got < 0) return got;
    if (got) {
        pthread_mutex_lock(&lock);
        if (kept_fd != fd) {
            kept_status = dt__token_read_fd((int)fd, "DT_TOKEN_FD", kept);
            kept_fd = fd;
            got = kept_status;
        } else if (kept_status < 0) /* it is closed: another file may have its number by now */
            got = dt__comm_bad(kept_status, "dt_comm_init: DT_TOKEN_FD is %d: no token could be read from it before", (int)fd);
        if (got > 0) memcpy(token, kept, 32);
        pthread_mutex_unlock(&lock);
        return got;
    }
    path = getenv("DT_TOKEN_FILE");
    return path ? dt__token_read_file(path, "DT_TOKEN_FILE", token) : 0;
}
static int dt__config_token(dt__config *f, const dt_comm_opts *o, const char *id)
{
    const char  *insecure = getenv("DT_INSECURE");
    dt_sha256 s;
    uint8_t      sum[32];
    char         text[320];
    int          got = dt__token_given(o, f->token);
    if (got < 0) return got;
    f->have_token = got > 0;
    f->ticket = f->local && (!f->have_token || !f->naddr);
    if (!f->have_token && !f->local && !o->insecure && !(insecure && strcmp(insecure, "1") == 0))
        return dt__comm_bad(
            DT_COMM_ERR_JOIN,
            "dt_comm_init: ranks of several machines (rank 0 at '%.100s') need a token: set "
            "DT_TOKEN_FILE (mode 0600) or DT_TOKEN_FD; or, if all are on this machine, LOCAL_WORLD_SIZE or a "
            "loopback address; or DT_INSECURE=1 on a network that you trust",
            f->host);
    /* the name of the Unix socket comes from what all ranks of the job know: the token, the port or the job id of the launcher */
    if (f->naddr) snprintf(text, sizeof text, "port %d epoch %" PRId64, f->port, f->epoch);
    else snprintf(text, sizeof text, "%s epoch %" PRId64, id, f->epoch);
    if (f->have_token) {
        dt__hmac m;
        dt__hmac_begin(&m, f->token, 32);
        dt__hmac_add(&m, "dt1 n", 5);
        dt__hmac_add(&m, text, strlen(text));
        dt__hmac_end(&m, sum);
    } else {
        dt_sha256_begin(&s);
        dt_sha256_add(&s, text, strlen(text));
        dt_sha256_end(&s, sum);
    }
    snprintf(f->name, sizeof f->name, "dt-%u-%02x%02x%02x%02x%02x%02x%02x%02x", (unsigned)geteuid(), sum[0], sum[1],
             sum[2], sum[3], sum[4], sum[5], sum[6], sum[7]);
    return 0;
}
static int dt__config_read(dt__config *f, const dt_comm_opts *o)
{
    char        id[256];
    const char *bound = o->bind && *o->bind ? o->bind : getenv("DT_BIND");
    int         got;
    memset(f, 0, sizeof *f);
    f->streams = o->streams > 0 ? o->streams : 1;
    /* An unknown name is refused after joining (dt__world_transport), so that all ranks learn of it. */
    const dt__transport_row *row = dt__transport_named(o);
    if (row && !row->transport && row->missing)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: transport \"%s\" is not in this program: %s", row->name,
                            row->missing);
    if (row && row->transport && row->transport->config && o->tolerant)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: .tolerant with transport \"%s\": MPI ends the job when a rank dies; use "
                                             "transport \"auto\"", row->name);
    if (row && row->transport && row->transport->config) {
        snprintf(f->bind, sizeof f->bind, "%s", bound ? bound : "");
        f->joined_by = row->transport;
        return (got = dt__config_times(f, o)) < 0 ? got : f->joined_by->config(f, o);
    }
    if ((got = dt__config_who(f, o, id, sizeof id)) < 0 || (got = dt__config_times(f, o)) < 0) return got;
    if (f->world == 1) return 0;
    if ((got = dt__config_master(f, o, id)) < 0 || (got = dt__config_token(f, o, id)) < 0) return got;
    snprintf(f->bind, sizeof f->bind, "%s", bound ? bound : "");
    return 0;
}

/* ---- the ticket: address and token of rank 0, for processes of this user on this machine. It is sent over an abstract
   Unix socket: that needs no file, leaves nothing behind after kill -9, and the kernel tells each side the user of the
   other. If the job was given a token, the ticket does not contain it but is signed with it, and the name of the socket
   depends on it: another job of this user can neither use nor replace it. If not, the user is all that is checked.
   Abstract sockets belong to the network namespace: containers that share it and run as root are one user. */
typedef struct dt__ticket {
    uint32_t magic, version;
    uint8_t  token[32], addr[28]; /* token: zeros, if the ranks have one */
    uint32_t addr_len;
    uint8_t  mac[32];             /* HMAC(token, "dt1 t", the fields before) */
} dt__ticket;
static void dt__ticket_mac(const dt__ticket *t, const uint8_t token[32], uint8_t out[32])
{
    dt__hmac m;
    dt__hmac_begin(&m, token, 32);
    dt__hmac_add(&m, "dt1 t", 5);
    dt__hmac_add(&m, t, offsetof(dt__ticket, mac));
    dt__hmac_end(&m, out);
}

/* 1: accepted; 0: it has no address, or is not of this job; negative: it has another version. */
static int dt__ticket_read(dt__config *f, dt__world *w, const dt__ticket *t)
{
    uint8_t mac[32];
    dt__ticket_mac(t, w->token, mac);
    if (f->have_token && !dt__same_secret(mac, t->mac, 32)) return 0;
    if (t->magic != DT__SHAKE_MAGIC || t->version != DT__SHAKE_VERSION)
        return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: rank 0 has another version of dt_comm.h: %u, expected %d",
                            (unsigned)t->version, DT__SHAKE_VERSION);
    if (!f->have_token) memcpy(w->token, t->token, 32);
    return dt__addr_take(&f->addr[0], t->addr, t->addr_len) ? (f->naddr = 1) : 0;
}
/* 1: received; 0: nobody listens yet; negative: failed. */
static int dt__ticket_take(dt__config *f, dt__world *w, int64_t deadline)
{
    dt__addr   a;
    dt__ticket t;
    size_t     done = 0;
    int        fd, got = 0;
    dt__addr_unix(&a, f->name);
    if ((fd = dt__connect(&a)) < 0) return 0;
    if (!dt__same_user(fd)) {
        dt__close(&fd);
        return dt__comm_bad(DT_COMM_ERR_JOIN,
                            "dt_comm_init: the Unix socket @%s, where rank 0 should listen, belongs to another user",
                            f->name);
    }
    if (deadline > dt__comm_now() + DT__NS_PER_S) deadline = dt__comm_now() + DT__NS_PER_S;
    while ((got = dt__recv_some(fd, &t, sizeof t, &done)) == 0 && dt__wait_fd(fd, POLLIN, deadline)) {}
    dt__close(&fd);
    return got == 1 ? dt__ticket_read(f, w, &t) : 0;
}

/* ---- the row of this rank in the table of ranks */
DT__INSIDE void dt__host_id(uint8_t out[16])
{
    dt_sha256 s;
    struct stat  st;
    uint8_t      sum[32];
    char         boot[64] = "";
    int          fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t      n = fd >= 0 ? read(fd, boot, sizeof boot) : 0;
    dt__close(&fd);
    if (n <= 0) n = gethostname(boot, sizeof boot) == 0 ? (ssize_t)strnlen(boot, sizeof boot) : 0;
    dt_sha256_begin(&s);
    dt_sha256_add(&s, boot, (size_t)n);
    if (stat("/proc/self/ns/net", &st) == 0) {
        uint64_t ino = (uint64_t)st.st_ino;
        dt_sha256_add(&s, &ino, sizeof ino);
    }
    dt_sha256_end(&s, sum);
    memcpy(out, sum, 16);
}
static int dt__member_unix(dt__world *w, dt__member *m) /* the socket where ranks of this machine fetch descriptors */
{
    uint8_t  r[12];
    dt__addr a;
    for (int i = 0; i < 3; i++) { /* retry if another process has drawn the same random name */
        if (!dt__comm_random(r, sizeof r)) break;
        snprintf(m->unix_name, sizeof m->unix_name, "dt-");
        for (int j = 0; j < 12; j++)
            snprintf(m->unix_name + 3 + 2 * j, sizeof m->unix_name - 3 - 2 * (size_t)j, "%02x", r[j]);
        dt__addr_unix(&a, m->unix_name);
        if ((w->unix_fd = dt__listen(&a)) >= 0) return 0;
    }
    return dt__comm_bad(dt__status_of(errno, DT_COMM_ERR_NET), "dt_comm_init: cannot create a Unix socket: %s",
                        strerror(errno));
}
static int dt__member_self(dt__world *w, dt__member *m)
{
    memset(m, 0, sizeof *m);
    m->pid = (int64_t)getpid();
    memcpy(m->name, w->name, sizeof m->name);
    m->incarnation = w->incarnation;
    dt__host_id(m->host_id);
    if (gethostname(m->host_name, sizeof m->host_name - 1) != 0) snprintf(m->host_name, sizeof m->host_name, "unknown");
    return w->size == 1 ? 0 : dt__member_unix(w, m); /* one rank has nobody to share with; dt__world_listen */
}
static int dt__member_addr(dt__world *w, dt__member *m,
                           const dt__addr *instead) /* the address of the listener; instead: used if it is the wildcard */
{
    dt__addr a;
    memset(&a, 0, sizeof a);
    a.n = sizeof a.u;
    if (getsockname(w->listen_fd, &a.u.any, &a.n) != 0 ||
        (a.u.any.sa_family != AF_INET && a.u.any.sa_family != AF_INET6))
        return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: descriptor %d is not a listening TCP socket", w->listen_fd);
    if (dt__addr_is_any(&a) && instead) {
        int port = dt__addr_port(&a);
        a = *instead;
        dt__addr_set_port(&a, port);
    }
    memcpy(m->addr, &a.u, a.n);
    m->addr_len = (uint32_t)a.n;
    return 0;
}
/* The listener of rank 0: given by the launcher, or created. If another job is still closing the port, retries for 2 s. */
DT__INSIDE int dt__listen_master(const dt__config *f)
{
    dt__addr    a[DT__ADDRS];
    char        text[80];
    const char *why = "";
    int         n = f->naddr, fd, on = 0;
    socklen_t   len = sizeof on;
    if (f->listen_fd >= 0) {
        if (getsockopt(f->listen_fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &len) != 0 || !on)
            return dt__comm_bad(DT_COMM_ERR_ARG,
                                "dt_comm_init: DT_LISTEN_FD or .listen_fd is %d, which is not a listening socket",
                                f->listen_fd);
        fd = fcntl(f->listen_fd, F_DUPFD_CLOEXEC, 3); /* the given one stays open for a later world */
        if (fd < 0 || fcntl(f->listen_fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0)
            return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: descriptor %d: %s", f->listen_fd, strerror(errno));
        return fd;
    }
    memcpy(a, f->addr, sizeof a);
    if (f->bind[0] && (n = dt__addr_find_by(f->bind, f->port, a, &why, f->deadline)) == 0)
        return dt__comm_bad(dt__status_of(errno, DT_COMM_ERR_ARG), "dt_comm_init: the address to listen at is '%.100s': %s",
                            f->bind, why);
    if (n == 0) dt__addr_loopback(&a[0], 0), n = 1;
    int64_t until = dt__comm_now() + 2 * DT__NS_PER_S;
    for (;;) {
        for (int i = 0; i < n; i++)
            if ((fd = dt__listen(&a[i])) >= 0) return fd;
        if (errno != EADDRINUSE || dt__comm_now() > until) break;
        dt__comm_pause(10 * DT__NS_PER_MS);
    }
    int         e = errno;
    const char *hint = !f->workers           ? ""
                       : e == EADDRINUSE    ? "; is there another scheduler (DMLC_ROLE), or another job at DMLC_PS_ROOT_PORT?"
                       : e == EADDRNOTAVAIL ? "; DMLC_PS_ROOT_URI must be an address of the scheduler's machine"
                                            : "";
    return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: %s cannot listen at %s: %s%s", f->workers ? "the scheduler" : "rank 0",
                        dt__addr_text(&a[0], text, sizeof text), strerror(e), hint);
}
static int dt__listen_own(dt__world *w, const dt__config *f, const dt__addr *master)
{
    dt__addr    a[DT__ADDRS];
    char        text[80];
    const char *why = "";
    if (f->bind[0]) {
        if (dt__addr_find_by(f->bind, 0, a, &why, f->deadline) == 0)
            return dt__comm_bad(dt__status_of(errno, DT_COMM_ERR_ARG), "dt_comm_init: the address to listen at is '%.100s': %s",
                                f->bind, why);
    } else if (!dt__addr_route(master, &a[0]))
        return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: no route to rank 0 at %s: %s",
                            dt__addr_text(master, text, sizeof text), strerror(errno));
    if ((w->listen_fd = dt__listen(&a[0])) >= 0) return 0;
    return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: cannot listen at %s: %s",
                        dt__addr_text(&a[0], text, sizeof text), strerror(errno));
}

/* ---- dialing */
/* One attempt. Returns a connected socket after its handshake, or a negative DT__SHAKE_ value (NET: see errno). Stops when c
   fails. */
/* A tolerant communicator does not fail when a member dies: it is halted. A member that has died never answers. */
static bool dt__dial_ends(const dt_comm *c) { return c && (!dt__comm_ok(c) || dt__comm_halted(c, UINT64_MAX)); }
static int  dt__dial(dt__world *w, const dt__addr *a, int to, int kind, uint64_t comm, int stream, int64_t deadline,
                     const dt_comm *c, dt__shake *h)
{
    int64_t now = dt__comm_now(), until = deadline < now + DT__HANDSHAKE_TIME ? deadline : now + DT__HANDSHAKE_TIME;
    int     fd = dt__connect(a), got;
    if (fd < 0) return DT__SHAKE_NET;
    if (!dt__shake_client(h, w, to, kind, comm, stream)) {
        dt__close(&fd);
        return DT__SHAKE_NET;
    }
    while ((got = dt__shake_step(h, fd)) == DT__SHAKE_AGAIN) {
        now = dt__comm_now();
        if (now >= until || dt__dial_ends(c)) {
            errno = ETIMEDOUT;
            got = DT__SHAKE_NET;
            break;
        }
        dt__wait_fd(fd, dt__shake_events(h), c && until > now + 50 * DT__NS_PER_MS ? now + 50 * DT__NS_PER_MS : until);
    }
    if (got == DT__SHAKE_DONE) {
        if (a->u.any.sa_family != AF_UNIX) dt__sock_tune(fd, w->timeout);
        return fd;
    }
    int e = errno;
    close(fd);
    errno = e;
    return got;
}
static const char *dt__dial_text(int got, int e, const dt__shake *h, char *buf, size_t nbytes)
{
    switch (got) {
    case DT__SHAKE_NET:
        snprintf(buf, nbytes, "%s%s", e ? strerror(e) : "it closed the connection",
                 e == EMFILE ? ": raise the limit of this process, ulimit -n" : "");
        break;
    case DT__SHAKE_NOT_DT: snprintf(buf, nbytes, "something other than dt answers there"); break;
    case DT__SHAKE_AUTH:
        snprintf(buf, nbytes,
                 "it closed the connection in the handshake: probably it has another token than this rank (compare "
                 "DT_TOKEN_FILE, or what the launchers pass)");
        break;
    case DT__SHAKE_BAD_VERSION:
        snprintf(buf, nbytes, "it has version %u of the protocol, this rank %d: all ranks need the same dt_comm.h",
                 (unsigned)h->s.version, DT__SHAKE_VERSION);
        break;
    case DT__SHAKE_BAD_JOB: snprintf(buf, nbytes, "another job, or an earlier start of this one, answers there"); break;
    default: snprintf(buf, nbytes, "it refuses: %s", h->r.text);
    }
    return buf;
}
/* Dials until a rank of the job answers or the deadline passes. Only an authenticated refusal ends it earlier: whatever else
   answers may be a stranger, an earlier job that still has the port, or a busy rank that had to close. So a wrong token is
   reported at the deadline; a line in the log tells the likely reason soon. Also stops when c fails (c may be NULL). */
#define DT__DIAL_WARN (1500 * DT__NS_PER_MS)
static int dt__dial_until(dt__world *w, const dt__addr *a, int naddr, int to, int kind, uint64_t comm, int stream,
                          int64_t deadline, const dt_comm *c, char *text, size_t nbytes)
{
    dt__shake h;
    char      why[256] = "", at[80], me[24];
    int64_t   wait = DT__NS_PER_MS, strange = 0; /* strange: since when something that is not a rank of this job answers */
    bool      warned = false;
    for (int i = 0;; i++) {
        const dt__addr *where = &a[i % naddr];
        int             got = dt__dial(w, where, to, kind, comm, stream, deadline, c, &h), e = errno;
        if (got >= 0) {
            if (h.any_job) memcpy(w->job, h.s.job, 16);
            if (w->rank <= DT__RANK_WORKER) w->rank = h.r.rank; /* the caller checks it */
            return got;
        }
        int64_t now = dt__comm_now();
        bool    end = got == DT__SHAKE_REFUSED || now >= deadline || dt__dial_ends(c);
        end = end || (got == DT__SHAKE_NET && e == EMFILE);
        /* an attempt that the deadline cuts off says less than the one before */
        if (!(why[0] && end && got == DT__SHAKE_NET && e == ETIMEDOUT)) dt__dial_text(got, e, &h, why, sizeof why);
        if (end) {
            snprintf(text, nbytes, "rank %d at %s: %s", to, dt__addr_text(where, at, sizeof at), why);
            return got == DT__SHAKE_NET && e == ECONNREFUSED ? DT_COMM_ERR_PEER : DT_COMM_ERR_JOIN;
        }
        if (got == DT__SHAKE_NET) strange = 0;
        else if (!strange) strange = now;
        if (strange && now > strange + DT__DIAL_WARN && !warned) {
            warned = true;
            dt__logf(2, "%s cannot join yet: rank %d at %s: %s; it tries again for %.0f s",
                     dt__rank_word(w->rank, me, sizeof me), to, dt__addr_text(where, at, sizeof at), why,
                     dt__seconds_of(deadline - now));
        }
        if (i % naddr == naddr - 1) {
            dt__comm_pause(now + wait > deadline ? deadline - now : wait);
            wait = wait < (warned ? 128 : 32) * DT__NS_PER_MS ? wait * 2 : wait;
        }
    }
}
/* Sends a control frame, waiting. 1: done; 0: the deadline passed; negative: the connection ended (errno). */
static int dt__cframe_send(int fd, int kind, int rank, const void *body, size_t n, int64_t deadline)
{
    dt__block *b = dt__block_new(kind, rank, body, n, NULL, 0);
    size_t     done = 0;
    int        got;
    errno = ENOMEM;
    if (!b) return -1;
    while ((got = dt__send_some(fd, b + 1, b->nbytes, &done)) == 0 && dt__wait_fd(fd, POLLOUT, deadline)) {}
    dt__block_unref(b);
    return got;
}

/* Reports a failed communicator to the launcher, which so finds the rank that failed first. The datagram is sent without
   waiting and may be lost. */
enum { DT__REPORT_MAGIC = 0x52525444, DT__REPORT_TEXT = 480 }; /* "DTRR" */
typedef struct dt__report {
    uint32_t magic;
    int32_t  status, rank, lost; /* rank: the sender, in the world; lost: the rank at fault, or -1 */
    char     text[DT__REPORT_TEXT];
} dt__report;
static void dt__world_report(const dt__world *w, int status, int rank, const char *text)
{
    dt__report r;
    if (w->report_fd <= 0) return;
    memset(&r, 0, sizeof r);
    r.magic = DT__REPORT_MAGIC;
    r.status = status;
    r.rank = w->rank;
    r.lost = rank;
    snprintf(r.text, sizeof r.text, "%s", text);
    if (send(w->report_fd, &r, sizeof r, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
}

/* ---- joining */
/* Numbers the machines, and the ranks of each machine, in the order of ranks. False: out of memory. */
static bool dt__table_finish(dt__world *w)
{
    size_t cap = 1;
    while (cap < 2 * (size_t)w->size) cap *= 2;
    /* a hash table of the first rank of each machine, then the number of ranks of each machine */
    int *first = (int *)dt__comm_zeroed(cap + (size_t)w->size, sizeof *first), *count = first ? first + cap : NULL;
    if (!first) return false;
    w->nhosts = 0;
    for (int r = 0; r < w->size; r++) {
        dt__member *m = &w->member[r];
        uint64_t    h[2];
        m->host_name[sizeof m->host_name - 1] = m->unix_name[sizeof m->unix_name - 1] = 0;
        memcpy(h, m->host_id, sizeof h);
        size_t i = (size_t)((h[0] ^ h[1] * 3) * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (cap - 1);
        while (first[i] && memcmp(w->member[first[i] - 1].host_id, m->host_id, sizeof h) != 0) i = (i + 1) & (cap - 1);
        m->host = first[i] ? w->member[first[i] - 1].host : w->nhosts++;
        if (!first[i]) first[i] = r + 1;
        m->local = count[m->host]++;
    }
    w->local_rank = w->member[w->rank].local;
    w->local_size = count[w->member[w->rank].host];
    DT_COMM_FREE(first);
    return true;
}
static void dt__world_close(dt__world *w)
{
    bool died = false;
    for (int r = 0; w->joined_by && w->control && r < w->size; r++) died = died || dt__world_gone(w, r) == 1;
    if (w->control) dt__control_end(w);
    dt__close(&w->listen_fd);
    dt__close(&w->unix_fd);
    pthread_mutex_destroy(&w->lock);
    DT_COMM_FREE(w->member);
    memset(w->token, 0, sizeof w->token);
    if (w->joined_by) w->joined_by->end(died);
    DT_COMM_FREE(w);
}
static int dt__join_first(dt__world *w, dt__config *f, int64_t deadline) /* rank 0 */
{
    char text[768];
    w->listen_fd = dt__listen_master(f);
    if (w->listen_fd < 0) return -1;
    if (f->ticket && !f->have_token && !dt__comm_random(w->token, 32))
        return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: getrandom failed");
    if (!dt__comm_random(w->job, 16)) return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: getrandom failed");
    if (dt__member_self(w, &w->member[0]) < 0 || dt__member_addr(w, &w->member[0], f->naddr ? &f->addr[0] : NULL) < 0)
        return -1;
    if (f->ticket) {
        dt__addr a;
        int64_t  until = dt__comm_now() + 2 * DT__NS_PER_S;
        dt__addr_unix(&a, f->name);
        while ((w->ticket_fd = dt__listen(&a)) < 0 && errno == EADDRINUSE && dt__comm_now() < until)
            dt__comm_pause(10 * DT__NS_PER_MS);
        if (w->ticket_fd < 0)
            return dt__comm_bad(DT_COMM_ERR_JOIN,
                                "dt_comm_init: the Unix socket @%s: %s; does another job with this port join now?",
                                f->name, strerror(errno));
    }
    w->join_deadline = deadline;
    w->ticket_token = !f->have_token;
    if (dt__control_start(w) < 0)
        return dt__comm_bad(dt__status_of(errno, DT_COMM_ERR_NET), "dt_comm_init: cannot start the control thread: %s",
                            strerror(errno));
    if (dt__control_wait_joined(w, text, sizeof text) == DT__JOIN_COMPLETE) return 0;
    return dt__comm_bad(w->control->join_status, "dt_comm_init: %s", text);
}
/* The listeners of this rank, and its row of the table. fd: connected to rank 0. */
static int dt__join_self(dt__world *w, const dt__config *f, int fd)
{
    dt__addr a, to;
    memset(&a, 0, sizeof a);
    a.n = sizeof a.u;
    to = a;
    if (getsockname(fd, &a.u.any, &a.n) != 0 || getpeername(fd, &to.u.any, &to.n) != 0)
        return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: %s", strerror(errno));
    dt__member *self = &w->member[w->rank];
    return dt__listen_own(w, f, &to) < 0 || dt__member_self(w, self) < 0 || dt__member_addr(w, self, &a) < 0 ? -1 : 0;
}
/* Rank 0 has named a relay: dials it. If it cannot be reached, dials rank 0 again, which names another one or says why the
   world failed. Returns the connection and *at, the rank that it leads to; or negative and text. */
static int dt__join_relay(dt__world *w, const dt__config *f, int *at, int64_t deadline, char *text, size_t nbytes)
{
    dt__addr a;
    int64_t  until = dt__comm_now() + DT__RELAY_TIME;
    int      fd = -1;
    *at = w->control->relay.rank;
    snprintf(text, nbytes, "rank 0 named rank %d as its relay, without an address", *at);
    if (dt__addr_take(&a, w->control->relay.addr, w->control->relay.addr_len))
        fd = dt__dial_until(w, &a, 1, *at, DT__KIND_REGISTER, dt__roles(w), w->streams - 1,
                            until < deadline ? until : deadline, NULL, text, nbytes);
    until = dt__comm_now() + DT__RELAY_TIME;
    if (fd >= 0 || dt__comm_now() >= deadline) return fd;
    *at = 0;
    return dt__dial_until(w, f->addr, f->naddr, 0, DT__KIND_REGISTER, dt__roles(w), w->streams - 1,
                          until < deadline ? until : deadline, NULL, text, nbytes);
}
/* The numbers of a role: workers from 1 on, then servers. */
static int dt__role_first(const dt__world *w, int role, int *n)
{
    *n = role == DT__RANK_WORKER ? w->workers : w->servers;
    return role == DT__RANK_WORKER ? 1 : 1 + w->workers;
}
static bool dt__role_has(const dt__world *w, int role, int rank)
{
    int n, first = dt__role_first(w, role, &n);
    return rank >= first && rank - first < n;
}
static int dt__join_other(dt__world *w, dt__config *f, int64_t deadline)
{
    dt__addr a;
    char     text[768], me[24];
    int64_t  wait = DT__NS_PER_MS;
    int      got = 0, fd, at = 0, asked = w->rank;
    while (f->ticket && (got = dt__ticket_take(f, w, deadline)) == 0) {
        if (dt__comm_now() >= deadline)
            return dt__comm_bad(DT_COMM_ERR_JOIN,
                                "dt_comm_init: rank 0 did not come within %g s: nobody of this user%s at the Unix "
                                "socket @%s",
                                w->join_timeout, f->have_token ? " and with this token" : "", f->name);
        dt__comm_pause(wait);
        wait = wait < 32 * DT__NS_PER_MS ? wait * 2 : wait;
    }
    if (got < 0) return got;
    fd = dt__dial_until(w, f->addr, f->naddr, 0, DT__KIND_REGISTER, dt__roles(w), w->streams - 1, deadline, NULL, text,
                        sizeof text);
    if (fd < 0)
        return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: %s cannot join (within %g s): %s",
                            dt__rank_word(w->rank, me, sizeof me), w->join_timeout, text);
    if (asked < 0 && !dt__role_has(w, asked, w->rank)) {
        got = w->rank;
        w->rank = asked;
        close(fd);
        return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: rank 0 gave %s the number %d, which no such rank can have",
                            dt__rank_word(asked, me, sizeof me), got);
    }
    int parent = (w->rank - 1) / DT__TREE;
    w->join_deadline = deadline + DT__JOIN_GRACE; /* rank 0 gives up first, and names the missing ranks */
    if ((got = dt__join_self(w, f, fd)) == 0 && dt__control_start(w) < 0)
        got = dt__comm_bad(dt__status_of(errno, DT_COMM_ERR_NET), "dt_comm_init: cannot start the control thread: %s",
                           strerror(errno));
    if (got < 0) {
        close(fd);
        return got;
    }
    for (int state = DT__JOIN_MOVES; state == DT__JOIN_MOVES;) {
        if ((got = dt__control_register(w, fd, at)) < 0) return got;
        state = dt__control_wait_joined(w, text, sizeof text);
        if (state == DT__JOIN_FAILED) return dt__comm_bad(w->control->join_status, "dt_comm_init: %s", text);
        if (state == DT__JOIN_MOVES && (fd = dt__join_relay(w, f, &at, deadline, text, sizeof text)) < 0)
            return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: rank %d cannot join: %s", w->rank, text);
    }
    if (parent == 0 && at == 0) return 0; /* the connection to rank 0 is the one of the tree now */
    if (!dt__addr_take(&a, w->member[parent].addr, w->member[parent].addr_len))
        return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: the table of ranks has no address of rank %d", parent);
    fd = dt__dial_until(w, &a, 1, parent, DT__KIND_TREE, 0, 0, deadline + DT__JOIN_GRACE, NULL, text, sizeof text);
    if (fd < 0) return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: rank %d cannot join: %s", w->rank, text);
    return dt__control_adopt(w, fd, parent);
}
static dt__world *dt__world_new(const dt__config *f)
{
    dt__world *w = (dt__world *)DT_COMM_MALLOC(sizeof *w);
    if (w) {
        memset(w, 0, sizeof *w);
        w->member = (dt__member *)DT_COMM_MALLOC((size_t)(f->room > f->world ? f->room : f->world) * sizeof *w->member);
    }
    if (!w || !w->member) {
        DT_COMM_FREE(w);
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory for a world of %d ranks", f->world);
        return NULL;
    }
    w->room = f->room > f->world ? f->room : f->world;
    memset(w->member, 0, (size_t)w->room * sizeof *w->member);
    w->refs = 1;
    w->rank = f->rank;
    w->size = w->start = f->world;
    w->epoch = f->epoch;
    w->report_fd = f->report_fd;
    w->timeout = f->timeout;
    w->join_timeout = f->join_timeout;
    w->listen_fd = w->unix_fd = w->ticket_fd = -1;
    w->streams = f->streams;
    w->workers = f->workers;
    w->servers = f->servers;
    memcpy(w->token, f->token, 32);
    memcpy(w->where, f->where, sizeof w->where);
    pthread_mutex_init(&w->lock, NULL);
    return w;
}
DT__INSIDE dt__world *dt__world_join(const dt_comm_opts *o, const dt__client *client)
{
    dt__config f;
    char       text[768];
    int64_t    begin = dt__comm_now(), deadline;
    int        room = 0;
    dt__said.text[0] = 0;
    if (dt__config_read(&f, o) < 0) return NULL;
    f.room = o->tolerant ? o->room : 0;
    if (o->room < 0 || o->room > DT__ROOM_MOST || (o->name && strlen(o->name) >= sizeof((dt__member *)NULL)->name)) {
        dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: .room is %d, expected 0 to %d; .name has up to 47 bytes", o->room, DT__ROOM_MOST);
        if (f.joined_by) dt__close(&f.listen_fd), f.joined_by->end(true);
        return NULL;
    }
    char who[24];
    snprintf(text, sizeof text, "%s of %d ranks", dt__rank_word(f.rank, who, sizeof who), f.world);
    /* room for those that join, if the hard limit allows it */
    if (f.room > f.world) dt__fds_limit(dt__fds_open() + dt__world_fds(f.rank, f.world) + 2 * (f.room - f.world) + DT__PENDING);
    if (f.world > 1 || f.room > 1) room = dt__fds_ensure("dt_comm_init", text, dt__world_fds(f.rank, f.world));
    dt__world *w = room < 0 ? NULL : dt__world_new(&f);
    if (!w && f.joined_by) dt__close(&f.listen_fd), f.joined_by->end(true);
    if (!w) return NULL;
    w->joined_by = f.joined_by;
    w->tolerant = o->tolerant;
    w->fd_room = 16 + room / 2; /* the program keeps the other half */
    memset(f.token, 0, sizeof f.token);
    deadline = begin + dt__ns_of(w->join_timeout);
    w->client = client;
    if (w->rank == 0) { /* an error here is sent to all ranks when they have registered */
        int n = client->settings(o, w->settings, sizeof w->settings);
        if (n < 0) snprintf(w->settings_bad, sizeof w->settings_bad, "%.390s", dt__said.text);
        else w->nsettings = (size_t)n, dt__said.text[0] = 0;
    }
    if (w->size == 1) {
        if (w->settings_bad[0]) {
            dt__world_close(w);
            return NULL;
        }
        if (o->name) snprintf(w->name, sizeof w->name, "%s", o->name);
        dt__member_self(w, &w->member[0]);
        w->nhosts = w->local_size = 1;
        int got = w->room > 1 ? dt__token_given(o, w->token) : 0;
        w->have_token = got > 0;
        if (got >= 0 && w->room > 1 && !dt__comm_random(w->job, 16)) got = dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: getrandom failed");
        if (got < 0) {
            dt__world_close(w);
            return NULL;
        }
    } else {
        if (o->name) snprintf(w->name, sizeof w->name, "%s", o->name);
        int got = w->rank == 0 ? dt__join_first(w, &f, deadline) : dt__join_other(w, &f, deadline);
        if (w->joined_by) dt__close(&f.listen_fd); /* the world has duplicated it */
        if (got == 0) { /* the first meeting */
            int64_t until = dt__comm_now() + 2 * DT__NS_PER_S;
            got = dt__meet(w, 0, NULL, until > deadline + DT__JOIN_GRACE ? until : deadline + DT__JOIN_GRACE, text,
                             sizeof text);
            if (got < 0) dt__comm_bad(got, "dt_comm_init: %s", text);
        }
        if (got == 0) dt__control_registered(w);
        if (got < 0) {
            memcpy(text, dt__said.text, sizeof text);
            dt__world_close(w);
            memcpy(dt__said.text, text, sizeof text);
            return NULL;
        }
    }
    dt__logf(3, "rank %d of %d (%s), machine %d of %d, %d ranks here, joined in %.0f ms", w->rank, w->size,
                 w->where, w->member[w->rank].host, w->nhosts, w->local_size, (double)(dt__comm_now() - begin) * 1e-6);
    return w;
}

/* ---- joining later */
static int dt__agree_root(const dt__world *w); /* >>control */
static char *dt__hex_put(char *to, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) snprintf(to + 2 * i, 3, "%02x", p[i]);
    return to + 2 * n;
}
static const char *dt__hex_get(const char *from, uint8_t *p, size_t most, size_t *n) /* as far as there are digits; NULL: invalid */
{
    for (*n = 0; *n < most; ++*n, from += 2) {
        unsigned v = 0;
        for (int i = 0; i < 2; i++) {
            char c = from[i];
            if (i == 0 && !(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f')) return from;
            if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f')) return NULL;
            v = v * 16 + (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
        }
        p[*n] = (uint8_t)v;
    }
    return from;
}
/* A world of one rank gets a listener and a control thread. */
static int dt__world_listen(dt__world *w, const char *bind_to, int port)
{
    dt__config f;
    dt__addr   a;
    memset(&f, 0, sizeof f);
    f.listen_fd = -1;
    f.port = port;
    f.deadline = dt__comm_now() + dt__ns_of(w->join_timeout);
    snprintf(f.bind, sizeof f.bind, "%s", bind_to ? bind_to : "");
    if (!bind_to) dt__addr_loopback(&f.addr[0], port), f.naddr = 1;
    if ((w->listen_fd = dt__listen_master(&f)) < 0) return dt__said.why;
    dt__addr_loopback(&a, 0);
    if (dt__member_addr(w, &w->member[0], &a) < 0 || dt__member_unix(w, &w->member[0]) < 0) return dt__said.why;
    if (!w->have_token && !dt__comm_random(w->token, 32))
        return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_accept: getrandom failed");
    w->join_deadline = INT64_MAX / 2; /* nobody registers */
    if (dt__control_start(w) < 0)
        return dt__comm_bad(dt__status_of(errno, DT_COMM_ERR_NET), "dt_comm_accept: cannot start the control thread: %s",
                            strerror(errno));
    pthread_mutex_lock(&w->lock);
    w->control->join = DT__JOIN_COMPLETE;
    pthread_mutex_unlock(&w->lock);
    return 0;
}
DT__INSIDE size_t dt__world_address(const dt__world *w, char *buf, size_t nbytes)
{
    dt__addr          a;
    const dt__member *m = &w->member[w->rank];
    char              text[80] = "";
    if (m->addr_len && dt__addr_take(&a, m->addr, m->addr_len)) dt__addr_text(&a, text, sizeof text);
    return (size_t)snprintf(buf, nbytes, "%s", text);
}
DT__INSIDE int dt__world_head(dt__world *w)
{
    if (!w->control) return 0;
    pthread_mutex_lock(&w->lock);
    int head = dt__agree_root(w);
    pthread_mutex_unlock(&w->lock);
    return head;
}
/* "dt1-", the address of the rank that accepts, "-", the token; both in hexadecimal digits. */
DT__INSIDE int dt__world_accept(dt__world *w, bool open, const char *bind_to, int port, char *invitation, size_t nbytes)
{
    if (!w->control && open) {
        int bad = dt__world_listen(w, bind_to, port);
        if (bad) {
            dt__close(&w->listen_fd);
            dt__close(&w->unix_fd);
            return bad;
        }
    }
    if (!w->control) return 0;
    pthread_mutex_lock(&w->lock);
    w->control->accepting = open;
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
    if (!invitation) return 0;
    const dt__member *m = &w->member[w->rank];
    char              text[DT__INVITATION], *at = text + snprintf(text, sizeof text, "dt1-");
    at = dt__hex_put(at, m->addr, m->addr_len < sizeof m->addr ? m->addr_len : sizeof m->addr);
    *at++ = '-';
    *dt__hex_put(at, w->token, 32) = 0;
    if (snprintf(invitation, nbytes, "%s", text) >= (int)nbytes)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_accept: the invitation needs %zu bytes, .nbytes is %zu", strlen(text) + 1, nbytes);
    return 0;
}
static int dt__invitation_read(const char *text, dt__config *f)
{
    uint8_t     addr[28];
    size_t      n = 0, k = 0;
    const char *at = strncmp(text, "dt1-", 4) ? NULL : dt__hex_get(text + 4, addr, sizeof addr, &n);
    if (at && *at == '-') at = dt__hex_get(at + 1, f->token, 32, &k);
    else at = NULL;
    if (!at || *at || k != 32 || !dt__addr_take(&f->addr[0], addr, (uint32_t)n))
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_join: the invitation is not one of dt_comm_accept");
    f->naddr = 1;
    f->have_token = true;
    return 0;
}
static int dt__join_config(dt__config *f, const dt_comm_opts *o)
{
    const char *host = o->addr && *o->addr ? o->addr : getenv("DT_ADDR"), *why = "", *text = o->invitation;
    int64_t     port = o->port;
    int         got;
    memset(f, 0, sizeof *f);
    f->listen_fd = -1;
    f->streams = 1;
    f->world = f->room = 2; /* until rank 0 says how many */
    snprintf(f->bind, sizeof f->bind, "%s", o->bind ? o->bind : "");
    snprintf(f->where, sizeof f->where, "dt_comm_join");
    if ((got = dt__config_times(f, o)) < 0) return got;
    f->report_fd = 0;
    if (text) return dt__invitation_read(text, f);
    if (!host || !*host) host = getenv("MASTER_ADDR");
    if (!port && ((got = dt__env_int("DT_PORT", 1, 65535, &port)) < 0 || (!got && dt__env_int("MASTER_PORT", 1, 65535, &port) < 0)))
        return dt__said.why;
    if (!host || !*host || port < 1 || port > 65535)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_join: where is rank 0? Set .invitation, or .addr and .port, or MASTER_ADDR and MASTER_PORT");
    if ((f->naddr = dt__addr_find_by(host, (int)port, f->addr, &why, f->deadline)) == 0)
        return dt__comm_bad(dt__status_of(errno, DT_COMM_ERR_JOIN), "dt_comm_join: the address of rank 0 is '%.100s': %s", host, why);
    if ((got = dt__token_given(o, f->token)) < 0) return got;
    const char *insecure = getenv("DT_INSECURE");
    if (!got && !o->insecure && !(insecure && !strcmp(insecure, "1")))
        return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_join: a token is needed: set .invitation, .token_file, DT_TOKEN_FILE or DT_TOKEN_FD");
    return 0;
}
/* Receives a control frame, waiting. The body is allocated. 1: done; 0: the deadline passed; negative: the connection ended. */
static int dt__cframe_recv(int fd, dt__chead *h, uint8_t **body, int64_t deadline)
{
    size_t done = 0;
    int    got;
    *body = NULL;
    while ((got = dt__recv_some(fd, h, sizeof *h, &done)) == 0 && dt__wait_fd(fd, POLLIN, deadline)) {}
    if (got != 1) return got;
    if (h->magic != (uint32_t)DT__CFRAME_MAGIC || h->nbytes > DT__CFRAME_MAX) return -1;
    if (!(*body = (uint8_t *)DT_COMM_MALLOC((size_t)h->nbytes + 1))) return -1;
    (*body)[h->nbytes] = 0;
    done = 0;
    while ((got = dt__recv_some(fd, *body, h->nbytes, &done)) == 0 && dt__wait_fd(fd, POLLIN, deadline)) {}
    return h->nbytes ? got : 1;
}
/* The table of ranks, from the frames that rank 0 sends to a rank that joins. *w gets its size and rows; *gone: of each rank
   two bytes, see dt__cwelcome. 0: more frames must come; 1: complete; negative: invalid, or refused after dt__comm_bad. */
DT__INSIDE int dt__welcome_take(dt__world *w, const dt__chead *h, const uint8_t *body, dt__cwelcome *hello, uint8_t **gone, int *have)
{
    dt__ctable t;
    size_t     n = h->nbytes;
    if (h->kind == DT__C_WELCOME && !*gone) {
        if (n < sizeof *hello) return -1;
        memcpy(hello, body, sizeof *hello);
        if (hello->room < 2 || hello->room > DT__ROOM_MOST || hello->size < 2 || hello->size > hello->room || hello->start < 1 ||
            hello->start >= hello->size || hello->rank != hello->size - 1 || n != sizeof *hello + 2 * (size_t)hello->size || hello->round < 0 ||
            hello->nsettings < 0 || (size_t)hello->nsettings > sizeof w->settings)
            return -1;
        *gone = (uint8_t *)DT_COMM_MALLOC(2 * (size_t)hello->size);
        dt__member *rows = (dt__member *)dt__comm_zeroed((size_t)hello->room, sizeof *rows);
        if (!*gone || !rows) {
            DT_COMM_FREE(rows);
            return -1;
        }
        memcpy(*gone, body + sizeof *hello, 2 * (size_t)hello->size);
        DT_COMM_FREE(w->member);
        w->member = rows;
        w->rank = hello->rank;
        w->size = hello->size;
        w->start = hello->start;
        w->room = hello->room;
        w->epoch = hello->epoch;
        return 0;
    }
    if (h->kind == DT__C_COSTS && *gone && n == (size_t)hello->nsettings && *have == 0) {
        w->nsettings = n;
        memcpy(w->settings, body, n);
        return w->client->settings_ok(w->settings, n) ? 0 : -1;
    }
    if (h->kind != DT__C_TABLE || !*gone || n < sizeof t) return -1;
    memcpy(&t, body, sizeof t);
    if (t.total != w->size || t.first != *have || t.n < 1 || t.n > w->size - t.first || n != sizeof t + (size_t)t.n * sizeof(dt__member)) return -1;
    memcpy(w->member + t.first, body + sizeof t, (size_t)t.n * sizeof(dt__member));
    *have += t.n;
    if (*have < w->size) return 0;
    for (int r = 0; r < w->size; r++) dt__member_clean(&w->member[r]);
    return dt__table_finish(w) ? 1 : -1;
}
static int dt__world_welcomed(dt__world *w, int fd, int64_t deadline, int32_t *round, uint8_t **gone, int *head)
{
    dt__chead    h;
    dt__cwelcome hello;
    uint8_t     *body = NULL;
    int          have = 0, got = 0, rc = 0;
    memset(&hello, 0, sizeof hello);
    while (rc == 0) {
        got = dt__cframe_recv(fd, &h, &body, deadline);
        if (got == 1 && h.kind == DT__C_REFUSED) dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_join: rank 0 refuses: %.600s", (const char *)body);
        else if (got == 1) rc = dt__welcome_take(w, &h, body, &hello, gone, &have), *head = h.rank;
        else dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_join: rank 0 %s while this rank was joining", got == 0 ? "does not answer" : "left");
        bool refused = got != 1 || h.kind == DT__C_REFUSED;
        DT_COMM_FREE(body);
        if (refused) return DT_COMM_ERR_JOIN;
    }
    *round = hello.round;
    if (rc > 0 && (*head < 0 || *head >= w->rank)) rc = -1;
    return rc > 0 ? 0 : dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_join: rank 0 sent an invalid table of ranks, or memory is exhausted");
}
DT__INSIDE dt__world *dt__world_enter(const dt_comm_opts *o, const dt__client *client, int32_t *round, uint8_t **gone)
{
    dt__config f;
    dt__member self;
    char       text[768];
    int        fd = -1, bad = 0, head = 0;
    dt__said.text[0] = 0;
    *gone = NULL;
    if (dt__join_config(&f, o) < 0) return NULL;
    int        room = dt__fds_ensure("dt_comm_join", "a rank that joins", dt__world_fds(1, 2));
    dt__world *w = room < 0 ? NULL : dt__world_new(&f);
    if (!w) return NULL;
    w->client = client;
    w->tolerant = true;
    w->rank = -1;
    w->fd_room = 16 + room / 2;
    snprintf(w->name, sizeof w->name, "%s", o->name ? o->name : "");
    w->incarnation = o->incarnation;
    memset(f.token, 0, sizeof f.token);
    fd = dt__dial_until(w, f.addr, f.naddr, 0, DT__KIND_JOIN, 0, 0, f.deadline, NULL, text, sizeof text);
    if (fd < 0) bad = dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_join: cannot join (within %g s): %s", w->join_timeout, text);
    if (!bad) {
        w->rank = 0; /* its row is the first one for now */
        bad = dt__join_self(w, &f, fd);
        self = w->member[0];
        w->rank = -1;
    }
    if (!bad && dt__cframe_send(fd, DT__C_MEMBER, -1, &self, sizeof self, f.deadline) != 1)
        bad = dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_join: rank 0 left while this rank was joining");
    if (!bad) bad = dt__world_welcomed(w, fd, f.deadline, round, gone, &head);
    w->join_deadline = INT64_MAX / 2;
    if (!bad && dt__control_start(w) < 0)
        bad = dt__comm_bad(dt__status_of(errno, DT_COMM_ERR_NET), "dt_comm_join: cannot start the control thread: %s", strerror(errno));
    if (!bad) {
        dt__control *ctl = w->control;
        pthread_mutex_lock(&w->lock);
        ctl->join = DT__JOIN_COMPLETE;
        for (int r = 0; r < w->size; r++) {
            ctl->gone[r] = (*gone)[2 * r] <= DT__LOST ? (*gone)[2 * r] : (uint8_t)DT__DIED;
            ctl->ngone += ctl->gone[r] != 0;
        }
        pthread_mutex_unlock(&w->lock);
        bad = dt__control_adopt(w, fd, head);
        fd = -1;
    }
    dt__close(&fd);
    if (!bad) return w;
    snprintf(text, sizeof text, "%s", dt__said.text);
    DT_COMM_FREE(*gone);
    *gone = NULL;
    dt__world_close(w);
    dt__comm_bad(bad, "%s", text);
    return NULL;
}

/* ---- dt_spawn */
static void dt__setenv_int(const char *name, int v)
{
    char text[16];
    snprintf(text, sizeof text, "%d", v);
    setenv(name, text, 1);
}
/* port 0: several machines; MASTER_ADDR and MASTER_PORT are set already */
#if !defined(__cplusplus) && !defined(__USE_ISOC11)
extern void quick_exit(int status) __attribute__((noreturn));
#endif
static void dt__spawn_child(int rank, int n, int first, int world, int port, int listen_fd, int token_fd, pid_t parent,
                            int (*fn)(void *), void *arg)
{
    static const char *const other[] = {
        "DT_ADDR", "DT_PORT", "DT_BIND", "DT_TOKEN_FILE", "DT_REPORT_FD", "TORCHELASTIC_USE_AGENT_STORE"
    };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126); /* the parent died before prctl */
    dt__setenv_int("RANK", first + rank);
    dt__setenv_int("WORLD_SIZE", world);
    dt__setenv_int("LOCAL_RANK", rank);
    dt__setenv_int("LOCAL_WORLD_SIZE", n);
    unsetenv("DT_LISTEN_FD");
    for (size_t i = 0; i < sizeof other / sizeof *other && port; i++) unsetenv(other[i]);
    if (port) {
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        dt__setenv_int("MASTER_PORT", port);
        dt__setenv_int("DT_TOKEN_FD", token_fd);
        if (rank == 0) dt__setenv_int("DT_LISTEN_FD", listen_fd);
        else close(listen_fd);
    } else {
        close(token_fd);
    }
    int status = fn(arg);
    dt__log_unread();
    fflush(NULL);
    quick_exit(status < 0 || status > 255 ? 1 : status); /* atexit handlers of the parent must not run here */
}
/* Signals that ask the parent of ranks to end. It holds them back while it waits for its ranks, so that they can save a
   checkpoint: the parent's death would kill them. The first one is passed on to the ranks, unless it came from a terminal,
   which sends it to all processes. After the second one, or DT__SPAWN_SAVE, the ranks get SIGTERM and soon SIGKILL. When
   all ranks have ended, the signal is delivered to the parent: it dies of it, or runs its handler. */
#define DT__SPAWN_SAVE (60 * DT__NS_PER_S)
typedef struct dt__spawn_signals {
    sigset_t set, before; /* the signals that are held back; the mask of the caller */
    int      fd, got;     /* signalfd, or -1; the first signal that came, or 0 */
} dt__spawn_signals;
static void dt__spawn_hold(dt__spawn_signals *s)
{
    static const int ask[] = { SIGINT, SIGTERM, SIGHUP };
    struct sigaction a;
    sigemptyset(&s->set);
    for (size_t i = 0; i < DT__COUNT_OF(ask); i++)
        if (!sigaction(ask[i], NULL, &a) && a.sa_handler != SIG_IGN) sigaddset(&s->set, ask[i]);
    s->got = 0;
    s->fd = signalfd(-1, &s->set, SFD_CLOEXEC | SFD_NONBLOCK);
    pthread_sigmask(SIG_BLOCK, NULL, &s->before);
    if (s->fd >= 0) pthread_sigmask(SIG_BLOCK, &s->set, NULL);
}
static void dt__spawn_deliver(dt__spawn_signals *s)
{
    dt__close(&s->fd);
    pthread_sigmask(SIG_SETMASK, &s->before, NULL);
    if (s->got) raise(s->got);
}
/* How many signals have come now; *from_terminal: the first of them did. */
static int dt__spawn_asked(dt__spawn_signals *s, bool *from_terminal)
{
    struct signalfd_siginfo info;
    int                     n = 0;
    while (s->fd >= 0 && read(s->fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (!s->got) s->got = (int)info.ssi_signo, *from_terminal = info.ssi_code == SI_KERNEL;
        n++;
    }
    return n;
}
static void dt__spawn_kill(const pid_t *pid, int n, int signal)
{
    for (int i = 0; i < n; i++)
        if (pid[i]) kill(pid[i], signal);
}
/* Waits for all ranks; *first: the first status that is not 0. After that failure the other ranks get SIGTERM when the
   first time has passed, and SIGKILL when the second has. */
static void dt__spawn_wait(pid_t *pid, int n, int *first, dt__spawn_signals *s, int64_t grace, int64_t last)
{
    struct pollfd *p = (struct pollfd *)DT_COMM_MALLOC(((size_t)n + 1) * sizeof *p);
    int64_t        end = INT64_MAX;
    int            left = n, stage = 0, status, asked = 0;
    if (p) {
        p[n].fd = s->fd;
        p[n].events = POLLIN;
    }
    for (int i = 0; p && i < n; i++) {
        p[i].fd = -1;
#ifdef SYS_pidfd_open
        p[i].fd = (int)syscall(SYS_pidfd_open, pid[i], 0);
#endif
        p[i].events = POLLIN;
    }
    for (bool all = true; left > 0;) { /* all: any of them may have ended, not only those that poll has named */
        bool blind = !p;
        for (int i = 0; i < n; i++) {
            if (pid[i] == 0) continue;
            if (!all && p && p[i].fd >= 0 && !p[i].revents) continue;
            pid_t got = waitpid(pid[i], &status, WNOHANG);
            if (got == 0 || (got < 0 && errno == EINTR)) {
                blind = blind || p[i].fd < 0;
                continue;
            }
            if (got < 0) status = 0; /* another part of the program has already waited for it */
            pid[i] = 0;
            left--;
            if (p) dt__close(&p[i].fd);
            status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            if (status && !*first) *first = status;
            if (status && stage == 0) stage = 1, end = dt__comm_now() + grace;
        }
        if (left == 0) break;
        bool terminal = false;
        int  came = dt__spawn_asked(s, &terminal);
        if (came && !asked) {
            if (!terminal) dt__spawn_kill(pid, n, s->got);
            if (stage == 0) stage = 1, end = dt__comm_now() + DT__SPAWN_SAVE;
        }
        if (asked + came > 1 && came && stage == 1) end = dt__comm_now(); /* asked twice: now */
        asked += came;
        if (stage && dt__comm_now() >= end) {
            dt__spawn_kill(pid, n, stage == 1 ? SIGTERM : SIGKILL);
            end = stage++ == 1 ? dt__comm_now() + last : INT64_MAX;
        }
        int ms = end == INT64_MAX ? -1 : dt__poll_ms(end);
        if (blind && (ms < 0 || ms > 5)) ms = 5;
        for (int i = 0; p && i < n; i++) p[i].revents = 0;
        all = poll(p, p ? (nfds_t)n + 1 : 0, ms) < 0;
        if (all && errno != EINTR) { /* more ranks than descriptors are allowed */
            struct timespec t = dt__timespec_of(5 * DT__NS_PER_MS);
            nanosleep(&t, NULL);
        }
    }
    DT_COMM_FREE(p);
}
static int dt__spawn(const char *call, int nodes, int node, int n, int (*fn)(void *arg), void *arg)
{
    uint8_t  token[32];
    dt__addr a;
    int      first = 0, started = 0, listen_fd = -1, port = 0, tube[2], status = 0;
    pid_t    parent = getpid();
    if (n < 1 || n > 4096 || !fn)
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: %d ranks and %s, expected 1 to 4096 and a function", call, n,
                            fn ? "a function" : "NULL");
    /* a pidfd for each rank; rank 0 inherits what is open here */
    char what[32];
    int  fds = n + 8, rank_0 = node == 0 ? dt__world_fds(0, nodes * n) : dt__world_fds(1, nodes * n);
    snprintf(what, sizeof what, "a job of %d ranks", nodes * n);
    if (dt__fds_ensure(call, what, fds > rank_0 ? fds : rank_0) < 0) return dt__said.why;
    pid_t *pid = (pid_t *)DT_COMM_MALLOC((size_t)n * sizeof *pid);
    if (!pid) return dt__comm_bad(DT_COMM_ERR_MEMORY, "%s: out of memory for %d ranks", call, n);
    bool ok = dt__comm_random(token, 32);
    if (ok && nodes == 1) {
        dt__addr_loopback(&a, 0);
        listen_fd = dt__listen(&a);
        ok = listen_fd >= 0 && getsockname(listen_fd, &a.u.any, &a.n) == 0;
        if (ok) port = dt__addr_port(&a);
    }
    if (!ok) {
        status = dt__comm_bad(dt__status_of(errno, DT_COMM_ERR_NET), "%s: cannot get a socket or random numbers: %s", call,
                              strerror(errno));
        DT_COMM_FREE(pid);
        dt__close(&listen_fd);
        return status;
    }
    fflush(NULL); /* else each rank would write the buffered output again */
    dt__spawn_signals signals;
    dt__spawn_hold(&signals);
    for (; started < n; started++) {
        if (syscall(SYS_pipe2, tube, O_CLOEXEC) != 0) break;
        pid_t child = write(tube[1], token, 32) == 32 ? fork() : -1;
        close(tube[1]);
        if (child == 0) {
            DT_COMM_FREE(pid);
            dt__close(&signals.fd);
            pthread_sigmask(SIG_SETMASK, &signals.before, NULL);
            dt__spawn_child(started, n, node * n, nodes * n, port, listen_fd, tube[0], parent, fn, arg);
        }
        close(tube[0]);
        if (child < 0) break;
        pid[started] = child;
    }
    if (started < n) {
        status =
            dt__comm_bad(dt__status_of(errno, DT_COMM_ERR_NET), "%s: cannot fork rank %d of %d: %s", call, started, n,
                         strerror(errno));
        for (int i = 0; i < started; i++) kill(pid[i], SIGKILL);
    }
    dt__close(&listen_fd);
    dt__spawn_wait(pid, started, &first, &signals, 10 * DT__NS_PER_S, 2 * DT__NS_PER_S);
    DT_COMM_FREE(pid);
    dt__spawn_deliver(&signals);
    return status ? status : first;
}
DT_API int dt_spawn(int n, int (*fn)(void *arg), void *arg) { return dt__spawn("dt_spawn", 1, 0, n, fn, arg); }
DT_API int dt_spawn_nodes(int nodes, int node, int n, int (*fn)(void *arg), void *arg)
{
    const char *call = "dt_spawn_nodes";
    if (nodes < 1 || node < 0 || node >= nodes || nodes > INT_MAX / 4096)
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: node is %d, expected 0 to nodes - 1; nodes is %d", call, node, nodes);
    if (nodes > 1 && (!getenv("MASTER_ADDR") || !getenv("MASTER_PORT")))
        return dt__comm_bad(DT_COMM_ERR_ARG,
                            "%s: %d machines, but MASTER_ADDR or MASTER_PORT is not set: set both to where rank 0 is", call,
                            nodes);
    return dt__spawn(call, nodes, node, n, fn, arg);
}

/* ==================================================================================================== >>control
   Thread: each world has one control thread (dt__control_main), which owns the control connections. The dt__world_...
   functions are called by other threads; they change the state, queue frames and wake the control thread.
   Lock: w->lock protects everything in dt__control and w->comms. The control thread releases it only in poll.
   States: DT__CONN_... of a connection, DT__JOIN_... and DT__LEAVE_... of the world, DT__INQUIRY_... of an inquiry.

   The connections form a tree: the parent of rank r is (r-1)/16. A connection that ends without DT__C_BYE means that its
   rank died. Every neighbour of the dead rank notices and floods DT__C_DEATH through its part of the tree, so all ranks
   learn of it. The ranks below a dead rank dial its nearest living ancestor (or the lowest living rank): then the tree is
   connected again.

   Leaving: a rank whose world is no longer used tells its parent (DT__C_LEAVE_UP) when its whole subtree wants to leave.
   The root releases all ranks when all want to leave, so an inner rank stays as long as a rank below needs it. A rank that
   has waited for its timeout sends DT__C_BYE and leaves alone. That is not a death, but a communicator that still needs
   the rank will time out. After a failure a rank waits 1 s at most. */
static void dt__control_gone(dt__world *w, int rank, int how, const char *text, const dt__conn *from);
static void dt__control_abort(dt__world *w, uint64_t comm, int status, int rank, const char *text,
                              const dt__conn *from);
static void dt__meet_fail(dt__world *w, uint64_t seq, const char *text, const dt__conn *from);
static void dt__control_heal(dt__world *w);
static void dt__control_unreached(dt__world *w, int rank, bool refused);
static void dt__control_expel(dt__world *w, int rank, double seconds);
static int64_t dt__heal_time(double s, double most);
static void dt__control_sync(dt__world *w, dt__conn *k);
static void dt__agree_resend(dt__world *w);
static dt__conn *dt__link_pending(dt__world *w, uint64_t comm, int peer, int stream, bool own);
static void dt__control_part(dt__world *w, const dt__cpart *a, const char *text, const dt__conn *from);
#define DT__CROSSED "the two ranks dialed each other: one connection is enough"
static void dt__inquiry_begin(dt__world *w, const dt__cask *ask, const int32_t *member, bool own);

/* ---- frames and connections */
DT__INSIDE dt__block *dt__block_new(int kind, int rank, const void *a, size_t na, const void *b, size_t nb)
{
    dt__block *k = (dt__block *)DT_COMM_MALLOC(sizeof *k + sizeof(dt__chead) + na + nb);
    dt__chead  h;
    if (!k) return NULL;
    h.magic = DT__CFRAME_MAGIC;
    h.kind = (uint32_t)kind;
    h.nbytes = (uint32_t)(na + nb);
    h.rank = rank;
    k->refs = 1;
    k->nbytes = sizeof h + na + nb;
    uint8_t *p = (uint8_t *)(k + 1);
    memcpy(p, &h, sizeof h);
    if (na) memcpy(p + sizeof h, a, na);
    if (nb) memcpy(p + sizeof h + na, b, nb);
    return k;
}
DT__INSIDE void dt__block_unref(dt__block *b)
{
    if (b && --b->refs == 0) DT_COMM_FREE(b);
}
DT__INSIDE uint8_t *dt__block_body(dt__block *b) { return (uint8_t *)(b + 1) + sizeof(dt__chead); }
static void dt__conn_queue(dt__conn *k, dt__block *b) /* does not take the caller's reference */
{
    DT__ON_SEND();
    dt__queued *q = b ? (dt__queued *)DT_COMM_MALLOC(sizeof *q) : NULL;
    if (!q) { /* out of memory: a lost frame is treated as a lost connection */
        dt__conn_break(k);
        return;
    }
    q->next = NULL;
    q->b = b;
    b->refs++;
    if (k->last) k->last->next = q;
    else k->out = q;
    k->last = q;
}
static void dt__conn_send(dt__conn *k, int kind, int rank, const void *body, size_t n)
{
    dt__block *b = dt__block_new(kind, rank, body, n, NULL, 0);
    dt__conn_queue(k, b);
    dt__block_unref(b);
}
static void dt__conn_pop(dt__conn *k) /* removes the first frame of the queue */
{
    dt__queued *q = k->out;
    k->out = q->next;
    if (!k->out) k->last = NULL;
    k->out_done = 0;
    dt__block_unref(q->b);
    DT_COMM_FREE(q);
}
static void dt__conn_flush(dt__conn *k)
{
    if (k->fd < 0) return; /* the simulator sends the queue */
    while (k->out && k->state != DT__CONN_BROKEN) {
        int got = dt__send_some(k->fd, k->out->b + 1, k->out->b->nbytes, &k->out_done);
        if (got == 0) return;
        if (got < 0) {
            /* not broken yet: frames of the peer are still to be read, perhaps its DT__C_BYE */
            while (k->out) dt__conn_pop(k);
            return;
        }
        dt__conn_pop(k);
    }
    if (!k->out && k->state == DT__CONN_CLOSING) dt__conn_break(k);
}
DT__INSIDE dt__conn *dt__conn_new(dt__world *w, int fd, int kind, int peer)
{
    dt__conn *k = (dt__conn *)DT_COMM_MALLOC(sizeof *k);
    if (!k) return NULL;
    memset(k, 0, sizeof *k);
    k->fd = fd;
    k->kind = kind;
    k->peer = peer;
    k->slot = -1;
    k->state = DT__CONN_OPEN;
    k->since = dt__comm_now();
    k->deadline = k->since + DT__HANDSHAKE_TIME;
    k->next = w->control->conns;
    w->control->conns = k;
    return k;
}
static void dt__conn_free(dt__conn *k)
{
    dt__close(&k->fd);
    while (k->out) dt__conn_pop(k);
    dt__block_unref(k->later);
    DT_COMM_FREE(k->body);
    DT_COMM_FREE(k);
}
static bool dt__conn_in_tree(const dt__conn *k) { return k->kind == DT__KIND_TREE && k->state == DT__CONN_READY; }
static void dt__control_flood(dt__world *w, dt__block *b, const dt__conn *except)
{
    for (dt__conn *k = w->control->conns; b && k; k = k->next)
        if (k != except && dt__conn_in_tree(k)) dt__conn_queue(k, b);
}
static void dt__control_wake(dt__world *w)
{
    uint64_t one = 1;
    if (w->sim) w->sim_ops->stir(w);
    else if (write(w->control->wake, &one, sizeof one) < 0) return; /* the counter is full: the thread is awake */
}
/* Logs a line. The caller holds the lock of the world, and a log function may call dt_comm_abort, which takes it. So lines
   are queued, and the control thread logs them in their order when it has released the lock. A line for which there is no
   memory is lost. The simulator has one thread and no lock. */
static DT__PRINTF(3, 4) void dt__control_logf(dt__world *w, int level, const char *format, ...)
{
    dt__control *ctl = w->control;
    char         text[1024];
    va_list      ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    if (w->sim) {
        dt__log(level, text);
        return;
    }
    size_t    n = strlen(text) + 1;
    dt__line *l = (dt__line *)DT_COMM_MALLOC(sizeof *l + n);
    if (!l) return;
    l->next = NULL;
    l->level = level;
    memcpy(l + 1, text, n);
    if (!ctl->lines) ctl->lines_end = &ctl->lines;
    *ctl->lines_end = l;
    ctl->lines_end = &l->next;
    dt__control_wake(w);
}
static void dt__lines_log(dt__line *l) /* without the lock; frees them */
{
    while (l) {
        dt__line *next = l->next;
        dt__log(l->level, (const char *)(l + 1));
        DT_COMM_FREE(l);
        l = next;
    }
}
static int         dt__control_above(const dt__world *w);
static bool        dt__control_is_root(const dt__world *w) { return !w->control->parent && dt__control_above(w) < 0; }
static const char *dt__rank_text(const dt__world *w, int rank, char *buf, size_t nbytes)
{
    snprintf(buf, nbytes, "rank %d (%s, pid %" PRId64 ")", rank, w->member[rank].host_name, w->member[rank].pid);
    return buf;
}
/* coll: dt_coll + 1, 0: unknown. It may come from another rank, so any number is possible. */
static const char *dt__coll_word(const dt__world *w, uint32_t coll)
{
    return coll ? w->client->coll_name((int)(coll - 1)) : "an operation";
}
static void dt__control_rejected(dt__world *w, int fd, const char *why) /* logs at most one line a second */
{
    dt__control *ctl = w->control;
    char         at[80];
    ctl->nrejected++;
    if (ctl->rejected_at && dt__comm_now() < ctl->rejected_at + DT__NS_PER_S) return;
    dt__control_logf(w, 2, "rank %d refused a connection from %s: %s (%d refused since the last such line)", w->rank,
                 dt__peer_text(fd, at, sizeof at), why, ctl->nrejected);
    ctl->rejected_at = dt__comm_now();
    ctl->nrejected = 0;
}
/* "rank 3, 5 and 9 more" */
static void dt__rank_list(char *buf, size_t nbytes, const int *rank, int n)
{
    size_t used = (size_t)snprintf(buf, nbytes, "%s ", n == 1 ? "rank" : "ranks");
    for (int i = 0; i < n && i < 8 && used < nbytes; i++)
        used += (size_t)snprintf(buf + used, nbytes - used, "%s%d", i ? ", " : "", rank[i]);
    if (n > 8 && used < nbytes) snprintf(buf + used, nbytes - used, " and %d more", n - 8);
}

/* ---- registering, until the table is complete */
static int dt__role_free(const dt__world *w, int role) /* rank 0: the next number that nobody has; -1: all are taken */
{
    int            n, first = dt__role_first(w, role, &n);
    const uint8_t *all = w->control->registered, *p = (const uint8_t *)memchr(all + first, DT__REG_NO, (size_t)n);
    return p ? (int)(p - all) : -1;
}
/* "ranks 3, 5", or with roles "1 of 4 workers (DMLC_NUM_WORKER)": rank[i] are the first of n */
static void dt__missing_list(const dt__world *w, char *buf, size_t nbytes, const int *rank, int n)
{
    const uint8_t *reg = w->control->registered;
    size_t         used = 0;
    if (!w->workers) dt__rank_list(buf, nbytes, rank, n);
    for (int role = DT__RANK_WORKER; w->workers && role >= DT__RANK_SERVER && used < nbytes; role--) {
        int all, gone = 0, first = dt__role_first(w, role, &all);
        for (int r = first; r < first + all; r++) gone += reg[r] == DT__REG_NO || reg[r] == DT__REG_MOVES;
        if (gone)
            used += (size_t)snprintf(buf + used, nbytes - used, "%s%d of %d %s", used ? ", " : "", gone, all,
                                     role == DT__RANK_WORKER ? "workers (DMLC_NUM_WORKER)" : "servers (DMLC_NUM_SERVER)");
    }
}
static void dt__register_missing(dt__world *w, char *buf, size_t nbytes)
{
    int first[8] = { 0 }, n = 0, stalled[8] = { 0 }, nstalled = 0;
    for (int r = 1; r < w->size; r++) {
        int reg = w->control->registered[r];
        if (reg == DT__REG_DONE) continue;
        bool stalls = reg == DT__REG_ADMITTED; /* it has the token, but its row does not come */
        int *n_of = stalls ? &nstalled : &n;
        if (*n_of < 8) (stalls ? stalled : first)[*n_of] = r;
        ++*n_of;
    }
    char   list[160];
    size_t used = 0;
    buf[0] = 0;
    if (nstalled) {
        dt__rank_list(list, sizeof list, stalled, nstalled);
        used = (size_t)snprintf(buf, nbytes, "%s connected and then sent nothing (stopped, or large packets get lost)%s", list,
                                n ? "; " : "");
    }
    dt__missing_list(w, list, sizeof list, first, n);
    if (n && used < nbytes) used += (size_t)snprintf(buf + used, nbytes - used, "missing: %s", list);
    if (used < nbytes)
        used += (size_t)snprintf(buf + used, nbytes - used, " (%d of %d are there)%s%s", w->size - n - nstalled, w->size,
                                 w->control->refused[0] ? "; refused: " : "", w->control->refused);
    if (w->control->nother_token && used < nbytes)
        snprintf(buf + used, nbytes - used, "; %d connections had another token, the last one from %s", w->control->nother_token,
                 w->control->other_token);
}
static bool dt__conn_below(const dt__control *ctl, const dt__conn *k) /* of a rank that has registered here, and waits */
{
    return k->kind == DT__KIND_REGISTER && k != ctl->above && k->state == DT__CONN_READY;
}
static void dt__register_tell(dt__world *w, int kind, const void *a, size_t na, const void *b, size_t nb)
{
    dt__block *block = NULL;
    for (dt__conn *k = w->control->conns; k; k = k->next) {
        if (!dt__conn_below(w->control, k)) continue;
        if (!block) block = dt__block_new(kind, 0, a, na, b, nb);
        dt__conn_queue(k, block);
    }
    dt__block_unref(block);
}
static void dt__register_fail(dt__world *w, int status, const char *text)
{
    dt__control *ctl = w->control;
    if (ctl->join != DT__JOIN_OPEN) return;
    ctl->join = DT__JOIN_FAILED;
    ctl->join_status = status;
    snprintf(ctl->join_text, sizeof ctl->join_text, "%s", text);
    if (w->rank == 0) dt__control_logf(w, 1, "joining failed: %s", text);
    for (dt__conn *k = ctl->conns; k; k = k->next)
        if (k->kind == DT__KIND_REGISTER && k != ctl->above && dt__conn_live(k)) {
            dt__conn_send(k, DT__C_REFUSED, 0, text, strnlen(text, DT__CTEXT));
            k->end_expected = true;
        }
    pthread_cond_broadcast(&ctl->cond);
}
static dt__ctable dt__table_part(const dt__world *w, int at) /* the rows from `at` on that one frame can hold */
{
    int        each = (int)((DT__CFRAME_MAX - sizeof(dt__ctable)) / sizeof(dt__member));
    dt__ctable t;
    memset(&t, 0, sizeof t);
    t.total = w->size;
    t.first = at;
    t.n = w->size - at < each ? w->size - at : each;
    return t;
}
static void dt__register_complete(dt__world *w)
{
    dt__control *ctl = w->control;
    if (!dt__table_finish(w)) {
        dt__register_fail(w, DT_COMM_ERR_MEMORY, "rank 0 is out of memory for the table of ranks");
        return;
    }
    if (w->nsettings) dt__register_tell(w, DT__C_COSTS, w->settings, w->nsettings, NULL, 0);
    for (int at = 0; at < w->size;) {
        dt__ctable t = dt__table_part(w, at);
        dt__register_tell(w, DT__C_TABLE, &t, sizeof t, w->member + at, (size_t)t.n * sizeof(dt__member));
        at += t.n;
    }
    for (dt__conn *k = ctl->conns; k; k = k->next)
        if (dt__conn_below(ctl, k) && (k->peer - 1) / DT__TREE == 0) k->kind = DT__KIND_TREE;
    ctl->join = DT__JOIN_COMPLETE;
    dt__close(&w->ticket_fd);
    pthread_cond_broadcast(&ctl->cond);
}
static void dt__register_done(dt__world *w, int rank) /* rank 0: its row is there, and it waits for the table */
{
    dt__control      *ctl = w->control;
    const dt__member *m = &w->member[rank];
    ctl->registered[rank] = DT__REG_DONE;
    dt__control_logf(w, 4, "rank %d (%s, pid %" PRId64 ") is there, %d of %d", rank, m->host_name, m->pid, ctl->nregistered + 1, w->size);
    if (++ctl->nregistered < w->size) return;
    if (w->settings_bad[0]) dt__register_fail(w, DT_COMM_ERR_JOIN, w->settings_bad);
    else dt__register_complete(w);
}
static void dt__register_undo(dt__world *w, int rank) /* rank 0: it has died */
{
    char text[768], who[160], missing[480];
    w->control->registered[rank] = DT__REG_NO;
    w->control->nregistered--;
    dt__register_missing(w, missing, sizeof missing);
    snprintf(text, sizeof text, "%s left while joining; %s", dt__rank_text(w, rank, who, sizeof who), missing);
    dt__register_fail(w, DT_COMM_ERR_JOIN, text);
}
static bool dt__register_move(dt__world *w, dt__conn *k) /* rank 0: sends the rank to the relay with the fewest ranks */
{
    dt__control *ctl = w->control;
    dt__conn    *relay = NULL;
    dt__crelay   where;
    for (dt__conn *i = ctl->conns; i; i = i->next)
        if (dt__conn_below(ctl, i) && (!relay || i->sent_to < relay->sent_to)) relay = i;
    if (!relay) return false;
    relay->sent_to++;
    where.rank = relay->peer;
    where.addr_len = w->member[relay->peer].addr_len;
    memcpy(where.addr, w->member[relay->peer].addr, sizeof where.addr);
    dt__conn_send(k, DT__C_RELAY, 0, &where, sizeof where);
    k->end_expected = true;
    if (k->state != DT__CONN_BROKEN) k->state = DT__CONN_CLOSING;
    ctl->registered[k->peer] = DT__REG_MOVES;
    return true;
}
/* DT__C_MEMBER, the row of a rank. False: the frame is invalid. */
static bool dt__register_member(dt__world *w, dt__conn *k)
{
    dt__control *ctl = w->control;
    dt__member   m, *known;
    char         text[64];
    int          r = k->head.rank, relays = dt__relays(w->size);
    if (k->head.nbytes != sizeof m || r < 1 || r >= w->size || ctl->join == DT__JOIN_COMPLETE) return false;
    if (ctl->join != DT__JOIN_OPEN) return true;
    if (w->rank != 0) { /* this rank is a relay */
        if (k->state != DT__CONN_OPEN || r != k->peer || !ctl->above) return false;
        k->state = DT__CONN_READY;
        dt__conn_send(ctl->above, DT__C_MEMBER, r, k->body, sizeof m);
        return true;
    }
    memcpy(&m, k->body, sizeof m);
    m.host_name[sizeof m.host_name - 1] = m.unix_name[sizeof m.unix_name - 1] = 0;
    known = &w->member[r];
    if (r != k->peer) { /* of a rank that was sent to this relay */
        if (k->state != DT__CONN_READY || ctl->registered[r] != DT__REG_MOVES || strcmp(m.unix_name, known->unix_name) != 0)
            return false;
        dt__register_done(w, r);
        return true;
    }
    if (k->state != DT__CONN_OPEN) return false;
    if (ctl->registered[r] == DT__REG_MOVES && strcmp(m.unix_name, known->unix_name) != 0) {
        snprintf(text, sizeof text, "there is a rank %d already", r);
        dt__conn_send(k, DT__C_REFUSED, 0, text, strlen(text));
        k->end_expected = true;
        if (k->state != DT__CONN_BROKEN) k->state = DT__CONN_CLOSING;
        return true;
    }
    *known = m;
    if (relays && r > DT__TREE && ctl->ndirect >= relays && dt__register_move(w, k)) return true;
    ctl->ndirect += r > DT__TREE;
    k->state = DT__CONN_READY;
    dt__register_done(w, r);
    return true;
}
/* DT__C_UNREGISTER: a relay says that one of its ranks has died. False: the frame is invalid. */
static bool dt__register_left(dt__world *w, const dt__conn *k)
{
    dt__control *ctl = w->control;
    int          r = k->head.rank;
    if (w->rank != 0 || !dt__conn_below(ctl, k) || k->head.nbytes || r < 1 || r >= w->size || r == k->peer) return false;
    if (ctl->join == DT__JOIN_OPEN && ctl->registered[r] == DT__REG_DONE) dt__register_undo(w, r);
    return true;
}
/* A part of the table of ranks. False: the frame is invalid. */
static bool dt__register_table(dt__world *w, dt__conn *k)
{
    dt__control *ctl = w->control;
    dt__ctable   t;
    if (k->head.nbytes < sizeof t) return false;
    memcpy(&t, k->body, sizeof t);
    if (t.total != w->size || t.first != ctl->table_have || t.n < 1 || t.n > w->size - t.first ||
        k->head.nbytes != sizeof t + (size_t)t.n * sizeof(dt__member))
        return false;
    memcpy(w->member + t.first, k->body + sizeof t, (size_t)t.n * sizeof(dt__member));
    ctl->table_have += t.n;
    dt__register_tell(w, DT__C_TABLE, k->body, k->head.nbytes, NULL, 0);
    if (ctl->table_have < w->size) return true;
    if (!dt__table_finish(w)) {
        dt__register_fail(w, DT_COMM_ERR_MEMORY, "out of memory for the table of ranks");
        return true;
    }
    ctl->join = DT__JOIN_COMPLETE;
    if (k->peer == 0 && (w->rank - 1) / DT__TREE == 0) { /* it leads to the parent: from now on frames of the tree follow */
        k->kind = DT__KIND_TREE;
        ctl->parent = k;
        ctl->above = NULL;
        w->joined = true;
        dt__conn_send(k, DT__C_SYNC, w->rank, NULL, 0);
        dt__control_sync(w, k);
    }
    pthread_cond_broadcast(&ctl->cond);
    return true;
}
/* A frame from where this rank has registered. What is wrong with it is the reason why joining fails. */
static void dt__register_above(dt__world *w, dt__conn *k)
{
    dt__control *ctl = w->control;
    const char  *body = (const char *)k->body;
    int          n = (int)(k->head.nbytes < (uint32_t)DT__CTEXT ? k->head.nbytes : (uint32_t)DT__CTEXT);
    char         text[DT__CTEXT + 1];
    if (ctl->join != DT__JOIN_OPEN) return;
    snprintf(text, sizeof text, "rank %d sent a frame of kind %u, expected the table of ranks", k->peer, (unsigned)k->head.kind);
    switch (k->head.kind) {
    case DT__C_REFUSED:
        if (n && body[0]) snprintf(text, sizeof text, "%.*s", n, body);
        else snprintf(text, sizeof text, "rank %d refused this rank without a reason", k->peer);
        k->end_expected = true;
        break;
    case DT__C_MISSING:
        snprintf(ctl->missing, sizeof ctl->missing, "%.*s", n, n ? body : "");
        dt__register_tell(w, DT__C_MISSING, body, (size_t)n, NULL, 0);
        return;
    case DT__C_COSTS:
        w->nsettings = k->head.nbytes <= sizeof w->settings ? k->head.nbytes : 0;
        dt__comm_copy(w->settings, body, w->nsettings);
        dt__register_tell(w, DT__C_COSTS, body, w->nsettings, NULL, 0);
        if (w->client->settings_ok(w->settings, w->nsettings)) return;
        snprintf(text, sizeof text, "rank 0 sent an invalid cost table");
        break;
    case DT__C_TABLE:
        if (dt__register_table(w, k)) return;
        snprintf(text, sizeof text, "rank %d sent an invalid table of ranks", k->peer);
        break;
    case DT__C_RELAY:
        snprintf(text, sizeof text, "rank 0 named an invalid relay");
        if (k->peer != 0 || k->head.nbytes != sizeof ctl->relay) break;
        memcpy(&ctl->relay, body, sizeof ctl->relay);
        if (ctl->relay.rank < 1 || ctl->relay.rank >= w->size || ctl->relay.rank == w->rank) break;
        ctl->join = DT__JOIN_MOVES;
        k->end_expected = true;
        dt__conn_break(k);
        pthread_cond_broadcast(&ctl->cond);
        return;
    }
    dt__register_fail(w, DT_COMM_ERR_JOIN, text);
}
static void dt__register_timers(dt__world *w, int64_t now)
{
    dt__control *ctl = w->control;
    char         text[768];
    if (ctl->join != DT__JOIN_OPEN) return;
    bool late = now >= w->join_deadline;
    if (w->rank == 0 && (late || now >= ctl->missing_at)) dt__register_missing(w, ctl->missing, sizeof ctl->missing);
    if (late) {
        snprintf(text, sizeof text, "the world is not complete after %g s: %s", w->join_timeout,
                 ctl->missing[0] ? ctl->missing : "rank 0 accepted the connection but sent nothing");
        dt__register_fail(w, DT_COMM_ERR_JOIN, text);
    } else if (w->rank == 0 && now >= ctl->missing_at) {
        if (ctl->missing_at) dt__register_tell(w, DT__C_MISSING, ctl->missing, strlen(ctl->missing), NULL, 0);
        ctl->missing_at = now + DT__NS_PER_S;
    }
}
static int dt__control_wait_joined(dt__world *w, char *text, size_t nbytes)
{
    dt__control *ctl = w->control;
    pthread_mutex_lock(&w->lock);
    while (ctl->join == DT__JOIN_OPEN) pthread_cond_wait(&ctl->cond, &w->lock); /* the control thread checks the deadline */
    snprintf(text, nbytes, "%s", ctl->join_text);
    int state = ctl->join;
    pthread_mutex_unlock(&w->lock);
    return state;
}

/* ---- joining later: a rank that dials the head of a tolerant world (its lowest living rank) with DT__KIND_JOIN and sends its row
   gets the next number, the table and what has happened so far (DT__C_WELCOME); the others are told over the tree (DT__C_JOIN).
   Its connection to the head becomes that to its parent in the tree. On every connection the rows come in the order of ranks,
   and before any other news of these ranks. The head alone gives numbers. When it dies, the next head does so after it has led
   an agreement of all: each rank that takes part has told it before of all members it knows. A member that joined at the old
   head, and of which none of them had heard, does not belong to the group. It is refused when it dials another rank: its number
   is unknown there, or belongs to another process (dt__row_id). */
DT__INSIDE uint64_t dt__row_id(const dt__member *m)
{
    uint64_t h = UINT64_C(1469598103934665603);
    for (size_t i = 0; i < sizeof m->host_id; i++) h = (h ^ m->host_id[i]) * UINT64_C(1099511628211);
    for (size_t i = 0; i < m->addr_len && i < sizeof m->addr; i++) h = (h ^ m->addr[i]) * UINT64_C(1099511628211);
    h = (h ^ (uint64_t)m->pid) * UINT64_C(1099511628211);
    return h | 1;
}
static bool dt__join_may(const dt__world *w, char *text, size_t nbytes)
{
    const dt__control *ctl = w->control;
    int                head = dt__agree_root(w);
    if (w->rank != head) snprintf(text, nbytes, "this is rank %d: rank %d accepts members", w->rank, head);
    else if (!ctl->accepting || ctl->join != DT__JOIN_COMPLETE || (head && !ctl->led))
        snprintf(text, nbytes, "the group is closed: rank %d has not called dt_comm_accept%s", head,
                 head && !ctl->led ? " after a dt_comm_shrink of all" : "");
    else if (ctl->leave != DT__LEAVE_NO) snprintf(text, nbytes, "rank %d is leaving", head);
    else if (w->size >= w->room)
        snprintf(text, nbytes, "the group is full: it has had %d members, the most that .room of dt_comm_init allows", w->room);
    else return true;
    return false;
}
/* May a member of this name come? Names are known for ever, so a late one of an old incarnation is recognised. */
static bool dt__join_named(const dt__world *w, const dt__member *m, char *text, size_t nbytes)
{
    for (int r = w->size - 1; r >= 0 && m->name[0]; r--) {
        const dt__member *old = &w->member[r];
        if (strcmp(old->name, m->name) || m->incarnation > old->incarnation) continue;
        snprintf(text, nbytes, "\"%s\" of incarnation %" PRId64 " comes too late: rank %d (%s, pid %" PRId64 ") was incarnation %" PRId64
                 "; a member that comes back needs a higher one", m->name, m->incarnation, r, old->host_name, old->pid, old->incarnation);
        return false;
    }
    return true;
}
static void dt__control_joined(dt__world *w, int rank, const dt__member *row, const dt__conn *from)
{
    dt__control *ctl = w->control;
    dt__cjoin    j;
    dt__member  *m = &w->member[rank];
    *m = *row;
    m->host = w->nhosts;
    m->local = 0;
    for (int r = 0; r < rank; r++) {
        if (memcmp(w->member[r].host_id, m->host_id, sizeof m->host_id)) continue;
        m->host = w->member[r].host;
        m->local++;
    }
    if (m->host == w->nhosts) __atomic_store_n(&w->nhosts, w->nhosts + 1, __ATOMIC_RELEASE);
    ctl->gone[rank] = DT__ALIVE;
    __atomic_store_n(&w->size, rank + 1, __ATOMIC_RELEASE);
    memset(&j, 0, sizeof j);
    j.rank = rank;
    j.row = *m;
    dt__block *b = dt__block_new(DT__C_JOIN, w->rank, &j, sizeof j, NULL, 0);
    dt__control_flood(w, b, from);
    dt__block_unref(b);
    dt__control_logf(w, 3, "rank %d: rank %d (%s, pid %" PRId64 ") joined", w->rank, rank, m->host_name, m->pid);
    for (dt_comm *c = w->comms; c; c = c->next)
        if (c->members && c->members->room > rank && c->first) dt__members_joined(c, rank);
    pthread_cond_broadcast(&ctl->cond);
}
static dt_comm *dt__world_first(const dt__world *w) /* the communicator that others may join; NULL: it was freed */
{
    dt_comm *c = w->comms;
    while (c && !(c->first && c->members)) c = c->next;
    return c;
}
static int32_t dt__agree_next(const dt__world *w, const dt_comm *c, int rank);
static void dt__join_welcome(dt__world *w, dt__conn *k, int rank)
{
    dt__control *ctl = w->control;
    dt__cwelcome h;
    dt_comm     *c = dt__world_first(w);
    uint8_t     *gone = (uint8_t *)dt__comm_zeroed(2, (size_t)w->size);
    if (!gone) {
        dt__conn_break(k);
        return;
    }
    memset(&h, 0, sizeof h);
    h.rank = rank;
    h.start = w->start;
    h.room = w->room;
    h.size = w->size;
    h.round = dt__agree_next(w, c, rank);
    h.epoch = w->epoch;
    h.nsettings = (int32_t)w->nsettings;
    for (int r = 0; r < w->size; r++) {
        gone[2 * r] = ctl->gone[r];
        gone[2 * r + 1] = c && !ctl->gone[r] && r != rank ? (uint8_t)dt__members_how(c, r, NULL, 0) : ctl->gone[r];
    }
    if (!c) gone[2 * w->rank + 1] = DT__LEFT; /* this rank has freed it */
    dt__block *b = dt__block_new(DT__C_WELCOME, w->rank, &h, sizeof h, gone, 2 * (size_t)w->size);
    dt__conn_queue(k, b);
    dt__block_unref(b);
    DT_COMM_FREE(gone);
    if (w->nsettings) dt__conn_send(k, DT__C_COSTS, w->rank, w->settings, w->nsettings);
    for (int at = 0; at < w->size;) {
        dt__ctable t = dt__table_part(w, at);
        b = dt__block_new(DT__C_TABLE, w->rank, &t, sizeof t, w->member + at, (size_t)t.n * sizeof(dt__member));
        dt__conn_queue(k, b);
        dt__block_unref(b);
        at += t.n;
    }
}
static void dt__member_clean(dt__member *m)
{
    m->host_name[sizeof m->host_name - 1] = m->unix_name[sizeof m->unix_name - 1] = m->name[sizeof m->name - 1] = 0;
}
/* The head: the row of a rank that wants to join. False: the frame is invalid. */
static bool dt__join_member(dt__world *w, dt__conn *k)
{
    dt__member m;
    char       text[400], who[160];
    if (k->head.kind != DT__C_MEMBER || k->head.nbytes != sizeof m || k->state != DT__CONN_OPEN) return false;
    memcpy(&m, k->body, sizeof m);
    dt__member_clean(&m);
    if (m.incarnation < 0 || m.addr_len > sizeof m.addr) return false;
    if (!dt__join_may(w, text, sizeof text) || !dt__join_named(w, &m, text, sizeof text)) {
        dt__control_logf(w, 2, "rank %d refused: %s", w->rank, text);
        dt__conn_send(k, DT__C_REFUSED, w->rank, text, strlen(text));
        k->end_expected = true;
        if (k->state != DT__CONN_BROKEN) k->state = DT__CONN_CLOSING;
        return true;
    }
    int rank = w->size;
    k->kind = DT__KIND_TREE;
    k->peer = rank;
    k->state = DT__CONN_READY;
    dt__control_joined(w, rank, &m, k);
    dt__join_welcome(w, k, rank); /* it has the rows, and who has gone */
    for (int i = 0; i < w->control->naborts && i < DT__ABORTS; i++) dt__conn_queue(k, w->control->aborts[i]);
    for (int r = 0; r < rank && m.name[0]; r++) { /* its earlier self, if it is not known to be dead */
        dt_comm  *c = dt__world_first(w);
        dt__cpart part;
        if (strcmp(w->member[r].name, m.name) || w->control->gone[r] || !c || dt__members_how(c, r, NULL, 0)) continue;
        memset(&part, 0, sizeof part);
        part.comm = c->id;
        part.rank = r;
        part.how = DT__DIED;
        snprintf(text, sizeof text, "%s is replaced by rank %d, incarnation %" PRId64 " of \"%s\"", dt__rank_text(w, r, who, sizeof who), rank,
                 m.incarnation, m.name);
        dt__control_part(w, &part, text, NULL);
    }
    return true;
}
/* DT__C_JOIN. False: the frame is invalid. */
static bool dt__join_heard(dt__world *w, const dt__conn *k, const uint8_t *p, size_t n)
{
    dt__cjoin j;
    if (n != sizeof j || k->kind != DT__KIND_TREE) return false;
    memcpy(&j, p, sizeof j);
    if (j.rank < 0 || j.rank >= w->room || j.rank > w->size) return false;
    dt__member_clean(&j.row);
    if (j.rank != w->size) return true;
    dt__control_joined(w, j.rank, &j.row, k);
    for (int i = 0; i < w->control->nturned && i < DT__TURNED; i++) {
        char text[256], who[160];
        if (w->control->turned[i] != dt__row_id(&j.row)) continue;
        snprintf(text, sizeof text, "%s joined when the head died, and was refused by rank %d, which did not know it",
                 dt__rank_text(w, j.rank, who, sizeof who), w->rank);
        dt__control_gone(w, j.rank, DT__DIED, text, NULL);
    }
    return true;
}
/* For so long after the death of the head a rank that joined there is not refused for good: members that have heard of it tell it
   to their new neighbours. */
static int64_t dt__unheard_time(const dt__world *w)
{
    double s = w->timeout / 10;
    return dt__ns_of(s < 0.3 ? 0.3 : s > 2 ? 2 : s);
}

/* ---- accepting */
static void dt__roles_differ(const dt__world *w, uint64_t theirs, const char *who, char *text, size_t nbytes)
{
    if (!w->workers)
        snprintf(text, nbytes, "%s has DMLC_ROLE, but the ranks of this job have their numbers from %s", who, w->where);
    else if (!theirs)
        snprintf(text, nbytes, "%s came with its number, but in this job the scheduler numbers the ranks (DMLC_ROLE)", who);
    else
        snprintf(text, nbytes, "%s has DMLC_NUM_WORKER %u and DMLC_NUM_SERVER %u, rank %d has %d and %d: all need the same",
                 who, (unsigned)(theirs >> 32), (unsigned)theirs, w->rank, w->workers, w->servers);
}
/* Decides on a peer that has proved that it knows the token. 0: accepted; else a status, and text says why. */
DT__INSIDE int dt__control_admit(dt__world *w, const dt__conn *k, char *text, size_t nbytes)
{
    dt__control       *ctl = w->control;
    const dt__hello_c *c = &k->shake.c;
    int                bad = DT_COMM_ERR_JOIN;
    char               who[24];
    /* role: it has no number yet */
    bool role = c->kind == DT__KIND_REGISTER && (c->rank == DT__RANK_WORKER || c->rank == DT__RANK_SERVER);
    dt__rank_word(c->rank, who, sizeof who);
    if (c->version != DT__SHAKE_VERSION)
        return snprintf(text, nbytes, "%s has version %u of the protocol, rank %d has %d: all ranks need the same dt_comm.h",
                        who, (unsigned)c->version, w->rank, DT__SHAKE_VERSION),
               bad;
    if (c->kind == DT__KIND_JOIN) return dt__join_may(w, text, nbytes) ? 0 : bad;
    if (c->epoch != w->epoch)
        return snprintf(text, nbytes, "%s is of start %" PRId64 " of the job, rank %d of start %" PRId64, who, c->epoch,
                        w->rank, w->epoch),
               bad;
    if (c->kind == DT__KIND_REGISTER && c->comm != dt__roles(w)) return dt__roles_differ(w, c->comm, who, text, nbytes), bad;
    if (c->world != w->start)
        return snprintf(text, nbytes, "%s says the world has %d ranks, rank %d says %d", who, c->world, w->rank, w->start), bad;
    if (c->zero != (w->room > w->start ? w->room : 0))
        return snprintf(text, nbytes, "%s has .room %d, rank %d has %d: all ranks need the same", who, c->zero, w->rank,
                        w->room),
               bad;
    if (c->rank >= w->size && c->rank < w->room) { /* it has joined, and this rank has not heard of it: another one may have */
        bool away = ctl->head_gone && dt__comm_now() - ctl->head_gone >= dt__unheard_time(w);
        if (away && c->kind == DT__KIND_TREE) ctl->turned[ctl->nturned++ % DT__TURNED] = c->comm;
        return snprintf(text, nbytes, "rank %d is not known here%s", c->rank,
                        away ? ": the rank where it joined has gone; join again" : " yet"),
               away ? (int)DT_COMM_ERR_PEER : bad;
    }
    if (c->kind == DT__KIND_TREE && w->room > w->start && c->rank >= w->start && c->comm != dt__row_id(&w->member[c->rank]))
        return snprintf(text, nbytes, "rank %d is another process here: the rank where it joined has gone; join again", c->rank),
               (int)DT_COMM_ERR_PEER;
    if (!role && (c->rank < 0 || c->rank >= w->size))
        return snprintf(text, nbytes, "rank %d is out of range: the world has ranks 0 to %d", c->rank, w->size - 1),
               bad;
    if (c->rank == w->rank) return snprintf(text, nbytes, "there is a rank %d already", c->rank), bad;
    if (c->to != w->rank) return snprintf(text, nbytes, "%s wants rank %d, this is rank %d", who, c->to, w->rank), bad;
    if (memcmp(c->job, w->job, 16) != 0) return snprintf(text, nbytes, "%s is of another job", who), bad;
    if (c->kind == DT__KIND_REGISTER) {
        int  r = role ? dt__role_free(w, c->rank) : c->rank;
        bool taken = r < 0 || (ctl->registered[r] && ctl->registered[r] != DT__REG_MOVES); /* MOVES: its relay was gone */
        const char *full = ctl->join == DT__JOIN_COMPLETE ? ": the world is complete" : "";
        if (w->rank != 0 && (role || ctl->join != DT__JOIN_OPEN || !dt__relays(w->size)))
            return snprintf(text, nbytes, "%s cannot be registered here: this is rank %d", who, w->rank), bad;
        if (role && (taken || *full))
            return snprintf(text, nbytes, "%s comes too late: there are %d already, as many as %s says%s", who,
                            c->rank == DT__RANK_WORKER ? w->workers : w->servers,
                            c->rank == DT__RANK_WORKER ? "DMLC_NUM_WORKER" : "DMLC_NUM_SERVER", full),
                   bad;
        if (taken || *full) return snprintf(text, nbytes, "there is a rank %d already%s", r, full), bad;
        if (c->stream != w->streams - 1) /* a rank that registers sends the number of its last stream */
            return snprintf(text, nbytes, "%s has .streams %lld, rank %d has %d: all ranks need the same", who,
                            (long long)c->stream + 1, w->rank, w->streams),
                   bad;
        return 0;
    }
    if (w->rank == 0 && ctl->join != DT__JOIN_COMPLETE) return snprintf(text, nbytes, "the world is not complete yet"), bad;
    if (ctl->gone[c->rank])
        return snprintf(text, nbytes, "rank %d has been declared %s", c->rank,
                        ctl->gone[c->rank] == DT__LEFT ? "gone" : "dead"),
               (int)DT_COMM_ERR_PEER;
    if (ctl->leave >= DT__LEAVE_RELEASED) return snprintf(text, nbytes, "rank %d is leaving", w->rank), bad;
    if (c->kind == DT__KIND_TREE) {
        for (dt__conn *i = ctl->conns; i; i = i->next)
            if (i != k && i->kind == DT__KIND_TREE && i->peer == c->rank && i->state != DT__CONN_BROKEN)
                return snprintf(text, nbytes, "rank %d is in the tree already", c->rank), bad;
        return c->rank > w->rank ? 0 : (snprintf(text, nbytes, "rank %d is not below rank %d", c->rank, w->rank), bad);
    }
    if ((c->kind == DT__KIND_LINK && !k->local) || (c->kind == DT__KIND_FD && k->local)) {
        if (ctl->narrived >= DT__ARRIVED_MAX)
            return snprintf(text, nbytes, "rank %d has too many connections that no communicator has taken", w->rank), bad;
        if (c->kind == DT__KIND_LINK && c->stream == DT__STREAM_MAIL) {
            bool have = w->rank < c->rank && dt__link_pending(w, c->comm, c->rank, c->stream, true);
            for (int i = 0; i < ctl->nlinked; i++) have = have || (ctl->linked[i].comm == c->comm && ctl->linked[i].peer == c->rank);
            if (have) return snprintf(text, nbytes, "%s", DT__CROSSED), bad;
        }
        return 0;
    }
    if (c->kind == DT__KIND_NEWS) return 0;
    return snprintf(text, nbytes, "connection kind %d is unknown", c->kind), bad;
}
static void dt__linked_add(dt__control *ctl, uint64_t comm, int peer)
{
    if (ctl->nlinked == ctl->linked_cap) {
        int         cap = ctl->linked_cap ? 2 * ctl->linked_cap : 16;
        dt__linked *l = (dt__linked *)DT_COMM_REALLOC(ctl->linked, (size_t)cap * sizeof *l);
        if (!l) return; /* a second connection of the pair would be accepted, and closed by dt__wire_set */
        ctl->linked = l;
        ctl->linked_cap = cap;
    }
    ctl->linked[ctl->nlinked].comm = comm;
    ctl->linked[ctl->nlinked++].peer = peer;
}
static void dt__conn_shake(dt__world *w, dt__conn *k);
static void dt__control_no_fd(dt__world *w) /* rank 0, while ranks register: the program has used up the descriptors */
{
    char text[400];
    for (const dt__conn *k = w->control->conns; k; k = k->next)
        if (k->state != DT__CONN_READY) return; /* that one will be closed soon */
    if (w->rank != 0 || w->control->join != DT__JOIN_OPEN) return;
    if (dt__fds_ensure("rank 0 cannot accept the other ranks", "it", w->size - w->control->nregistered + 40) >= 0) return;
    snprintf(text, sizeof text, "%.390s", dt__said.text);
    dt__register_fail(w, DT_COMM_ERR_NET, text);
}
/* Connections whose peer has not proved that it knows the token. Anyone can make them, so they are limited. When there are
   too many, one is closed: one of the source address that has the most of them, drawn at random. An address with few
   connections is therefore safe from one with many. Of connections from one address (ranks and strangers on one machine),
   each has the same chance: an honest one needs a few milliseconds and is tried again. The oldest would be the honest ones
   that are far away; the newest would be all honest ones, once strangers fill the table. */
static bool dt__conn_pending(const dt__conn *k)
{
    return k->state == DT__CONN_HANDSHAKE && k->shake.server && k->shake.state <= DT__SHAKE_AT_C;
}
static int dt__pending_most(const dt__world *w) /* how many of them are allowed now */
{
    int room = w->fd_room + (w->rank == 0 && !dt__relays(w->size) ? w->size - w->control->nregistered : 0);
    int most = w->size + DT__PENDING;
    return most < room ? most : room;
}
static int dt__pending_count(const dt__world *w)
{
    int n = 0;
    for (const dt__conn *k = w->control->conns; k; k = k->next) n += dt__conn_pending(k);
    return n;
}
static uint8_t dt__pending_source(dt__world *w, int fd) /* a hash of the peer's address; of IPv6 the first 64 bits */
{
    dt__addr a;
    uint64_t h = 0;
    memset(&a, 0, sizeof a);
    a.n = sizeof a.u;
    if (getpeername(fd, &a.u.any, &a.n) != 0) return 0;
    if (a.u.any.sa_family == AF_INET) memcpy(&h, &a.u.v4.sin_addr, 4);
    else if (a.u.any.sa_family == AF_INET6) {
        const uint8_t *p = (const uint8_t *)&a.u.v6.sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(&a.u.v6.sin6_addr)) memcpy(&h, p + 12, 4);
        else memcpy(&h, p, 8);
    }
    h = (h ^ w->control->salt) * UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ h >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint8_t)(h >> 56);
}
static dt__conn *dt__pending_pick(dt__world *w, int64_t before) /* of those that began before this time; NULL: none */
{
    dt__control *ctl = w->control;
    int          count[256], worst = 0;
    memset(count, 0, sizeof count);
    for (const dt__conn *k = ctl->conns; k; k = k->next)
        if (dt__conn_pending(k) && k->since < before && ++count[k->source] > count[worst]) worst = k->source;
    if (count[worst] == 0) return NULL;
    ctl->draw = ctl->draw * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    int n = (int)((ctl->draw >> 33) % (uint64_t)count[worst]);
    for (dt__conn *k = ctl->conns; k; k = k->next)
        if (dt__conn_pending(k) && k->since < before && k->source == worst && n-- == 0) return k;
    return NULL;
}
/* Closes one of them. False: all are too young. Each may live for DT__ACCEPT_PATIENCE, or in a fast flood none would last for
   a handshake over a slow network; those that follow wait in the queue of the listener meanwhile. */
static bool dt__pending_drop(dt__world *w)
{
    dt__conn *k = dt__pending_pick(w, dt__comm_now() - DT__ACCEPT_PATIENCE);
    if (!k) return false;
    dt__control_rejected(w, k->fd, "too many connections without the token");
    dt__conn_break(k);
    dt__close(&k->fd);
    return true;
}
static void dt__control_accept(dt__world *w, int listener, bool local)
{
    dt__control *ctl = w->control;
    int          most = dt__pending_most(w), n = dt__pending_count(w);
    for (int i = 0; i < 64; i++) {
        bool scarce = n >= most;
        if (scarce && dt__pending_drop(w)) n--, scarce = false;
        int fd = scarce ? -1 : (int)syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (!scarce && fd < 0) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            scarce = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
            if (!scarce) return;
            if (n == 0 && errno == EMFILE) dt__control_no_fd(w);
            if (dt__pending_drop(w)) {
                n--;
                continue;
            }
        }
        if (scarce) {
            ctl->accept_after = dt__comm_now() + 20 * DT__NS_PER_MS;
            return;
        }
        dt__conn *k = local && !dt__same_user(fd) ? NULL : dt__conn_new(w, fd, 0, -1);
        if (!k) {
            close(fd);
            continue;
        }
        k->local = local;
        k->state = DT__CONN_HANDSHAKE;
        k->source = dt__pending_source(w, fd);
        if (!dt__shake_server(&k->shake, w)) dt__conn_break(k);
        else dt__conn_shake(w, k); /* sends the first message */
        n += dt__conn_pending(k);
    }
}
static void dt__control_ticket(dt__world *w)
{
    for (int i = 0; i < 64; i++) {
        int fd = (int)syscall(SYS_accept4, w->ticket_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE) w->control->accept_after = dt__comm_now() + 20 * DT__NS_PER_MS;
            return;
        }
        dt__ticket t;
        size_t     done = 0;
        memset(&t, 0, sizeof t);
        t.magic = DT__SHAKE_MAGIC;
        t.version = DT__SHAKE_VERSION;
        if (w->ticket_token) memcpy(t.token, w->token, 32);
        memcpy(t.addr, w->member[0].addr, sizeof t.addr);
        t.addr_len = w->member[0].addr_len;
        dt__ticket_mac(&t, w->token, t.mac);
        if (dt__same_user(fd)) dt__send_some(fd, &t, sizeof t, &done);
        else dt__control_rejected(w, fd, "another user asked for the token");
        close(fd);
    }
}
static void dt__control_sync(dt__world *w, dt__conn *k) /* sends all deaths and aborts so far to a new neighbour */
{
    dt__control *ctl = w->control;
    for (int r = w->start; w->room > w->start && r < w->size; r++) {
        dt__cjoin j;
        memset(&j, 0, sizeof j);
        j.rank = r;
        j.row = w->member[r];
        dt__conn_send(k, DT__C_JOIN, w->rank, &j, sizeof j);
    }
    for (int i = 0; i < ctl->nparts && i < DT__PARTS_KEPT; i++) dt__conn_queue(k, ctl->parts[i]); /* they say more than the next */
    for (int r = 0; r < w->size; r++)
        if (ctl->gone[r]) {
            char       text[256], who[160];
            dt__cdeath d;
            d.rank = r;
            d.how = ctl->gone[r];
            snprintf(text, sizeof text, "%s %s", dt__rank_text(w, r, who, sizeof who), d.how == DT__LEFT ? "left" : "died");
            dt__block *b = dt__block_new(DT__C_DEATH, r, &d, sizeof d, text, strlen(text));
            dt__conn_queue(k, b);
            dt__block_unref(b);
        }
    for (int i = 0; i < ctl->naborts && i < DT__ABORTS; i++) dt__conn_queue(k, ctl->aborts[i]);
}
/* A relay may be dialed by a rank below it in the tree before it is in the tree itself, and can pass on its frames: the
   answer to that handshake waits. */
static bool dt__conn_held(const dt__world *w, const dt__conn *k)
{
    return k->state == DT__CONN_HANDSHAKE && k->shake.server && k->shake.state == DT__SHAKE_AT_DECISION && w->rank != 0 &&
           !w->joined && k->shake.c.kind != DT__KIND_REGISTER;
}
/* Advances the handshake of a connection. */
static void dt__conn_shake(dt__world *w, dt__conn *k)
{
    dt__control *ctl = w->control;
    char         text[sizeof k->shake.r.text];
    int          got = k->shake.server && k->shake.state == DT__SHAKE_AT_DECISION ? (int)DT__SHAKE_DECIDE
                                                                                  : dt__shake_step(&k->shake, k->fd);
    if (got == DT__SHAKE_DECIDE && dt__conn_held(w, k)) return;
    if (got == DT__SHAKE_DECIDE) {
        int status = dt__control_admit(w, k, text, sizeof text);
        if (status == 0) {
            k->kind = k->shake.c.kind;
            k->peer = k->shake.c.rank;
            if (k->peer < 0 && k->kind == DT__KIND_REGISTER) k->peer = k->shake.number = dt__role_free(w, k->peer);
            text[0] = 0;
            if (k->kind == DT__KIND_REGISTER && !ctl->registered[k->peer]) ctl->registered[k->peer] = DT__REG_ADMITTED;
        } else {
            dt__control_logf(w, strcmp(text, DT__CROSSED) ? 2 : 4, "rank %d refused: %s", w->rank, text);
            if (ctl->join != DT__JOIN_COMPLETE) snprintf(ctl->refused, sizeof ctl->refused, "%s", text);
        }
        dt__shake_reply(&k->shake, status, text);
        got = dt__shake_step(&k->shake, k->fd);
    }
    if (got == DT__SHAKE_AGAIN) return;
    if (got != DT__SHAKE_DONE) {
        k->refused = got == DT__SHAKE_NET && errno == ECONNREFUSED; /* a reset may come from a busy rank */
        if (got == DT__SHAKE_REFUSED && !k->shake.server && k->shake.r.status == DT_COMM_ERR_PEER &&
            (k->kind == DT__KIND_TREE || k->kind == DT__KIND_LINK))
            dt__control_expelled(w, k->shake.r.text);
        if (!k->shake.server && k->kind == DT__KIND_LINK) { /* dt__world_link tries again */
            char why[256];
            ctl->dial_after = dt__comm_now() + DT__LINK_RETRY;
            dt__control_logf(w, 4, "rank %d cannot connect to rank %d yet: %s", w->rank, k->peer,
                     dt__dial_text(got, errno, &k->shake, why, sizeof why));
        }
        if (k->shake.server && got == DT__SHAKE_AUTH && ctl->join == DT__JOIN_OPEN) {
            ctl->nother_token++;
            dt__peer_text(k->fd, ctl->other_token, sizeof ctl->other_token);
        }
        if (k->shake.server && got != DT__SHAKE_REFUSED)
            dt__control_rejected(w, k->fd,
                                 got == DT__SHAKE_NET    ? "it disconnected"
                                 : got == DT__SHAKE_AUTH ? "it has another token"
                                                         : "it does not speak the protocol of dt");
        dt__conn_break(k);
        return;
    }
    dt__conn_established(w, k);
}
DT__INSIDE void dt__conn_established(dt__world *w, dt__conn *k)
{
    dt__control *ctl = w->control;
    k->state = DT__CONN_OPEN;
    k->deadline = dt__comm_now() + dt__ns_of(w->join_timeout); /* of one that joins: until its row has come */
    if (!k->local) dt__sock_tune(k->fd, w->timeout);
    if (k->kind == DT__KIND_REGISTER && ctl->join == DT__JOIN_FAILED) { /* too late */
        dt__conn_send(k, DT__C_REFUSED, 0, ctl->join_text, strnlen(ctl->join_text, DT__CTEXT));
        k->end_expected = true;
    }
    if (k->kind == DT__KIND_LINK || (k->shake.server && k->kind == DT__KIND_FD)) {
        dt__arrived *a = (dt__arrived *)DT_COMM_MALLOC(sizeof *a);
        dt__conn_break(k);
        if (!a) return;
        memset(a, 0, sizeof *a);
        a->fd = k->fd;
        a->kind = k->kind;
        a->peer = k->peer;
        a->comm = k->shake.c.comm;
        a->stream = k->shake.c.stream;
        a->since = dt__comm_now();
        k->fd = -1;
        if (ctl->arrived_last) ctl->arrived_last->next = a;
        else ctl->arrived = a;
        ctl->arrived_last = a;
        ctl->narrived++;
        bool mail = a->kind == DT__KIND_LINK && a->stream == DT__STREAM_MAIL;
        if (mail) dt__linked_add(ctl, a->comm, a->peer);
        /* wake the engine that waits for it */
        for (dt_comm *c = w->comms; c; c = c->next) {
            uint64_t one = 1;
            if (c->id != a->comm) continue;
            if (mail) __atomic_add_fetch(&c->links_arrived, 1, __ATOMIC_RELEASE);
            if (c->wake_fd >= 0 && write(c->wake_fd, &one, sizeof one) < 0) break;
        }
        pthread_cond_broadcast(&ctl->cond);
    } else if (!k->shake.server && k->kind == DT__KIND_TREE) { /* the new parent */
        ctl->parent = k;
        ctl->healing = NULL;
        ctl->leave_sent = 0;
        ctl->hop_since = 0;
        ctl->heal_since = 0;
        k->state = DT__CONN_READY;
        dt__conn_send(k, DT__C_SYNC, w->rank, NULL, 0);
        dt__control_sync(w, k);
        dt__agree_resend(w);
    } else if (!k->shake.server && k->later) {
        k->state = DT__CONN_CLOSING;
        dt__conn_queue(k, k->later);
    } else if (k->probe) { /* the peer answered, so the probe is done */
        if (ctl->orphan[k->peer]) ctl->orphan[k->peer] = dt__comm_now();
        dt__conn_break(k);
    }
}
/* Starts a connection of the control thread. later: a frame that is sent after the handshake, or NULL. */
static dt__conn *dt__control_dial(dt__world *w, int peer, int kind, dt__block *later)
{
    dt__addr  a;
    dt__conn *k;
    if (w->sim) return w->sim_ops->dial(w, peer, kind, later);
    if (!dt__addr_take(&a, w->member[peer].addr, w->member[peer].addr_len)) return NULL;
    int fd = dt__connect(&a);
    if (fd < 0 || !(k = dt__conn_new(w, fd, kind, peer))) {
        dt__close(&fd);
        return NULL;
    }
    k->state = DT__CONN_HANDSHAKE;
    k->deadline = k->since + DT__REDIAL_TIME;
    if (!dt__shake_client(&k->shake, w, peer, kind, kind == DT__KIND_TREE && w->room > w->start && w->rank >= w->start ? dt__row_id(&w->member[w->rank]) : 0, 0))
        dt__conn_break(k);
    if (later) {
        later->refs++;
        k->later = later;
    }
    return k;
}
/* The new parent when the old one is gone: the nearest living ancestor, else the lowest living rank; -1: this rank is the
   lowest, that is, the root. */
static int dt__above_of(const dt__world *w, int rank)
{
    const uint8_t *gone = w->control->gone;
    for (int r = rank; r > 0 && !(rank >= w->start && w->start);) { /* one that has joined did so at the lowest living rank */
        r = (r - 1) / DT__TREE;
        if (!gone[r]) return r;
    }
    for (int r = 0; r < rank; r++)
        if (!gone[r]) return r;
    return -1;
}
static int dt__control_above(const dt__world *w) { return dt__above_of(w, w->rank); }
/* Tolerant: a rank that dies at the same time as its parent has no neighbour that would notice. So the new parent of a rank
   whose parent is gone waits for it for a moment, and dials it if it does not come: it is dead if nobody listens there, and
   lost if nothing is heard of it for as long as a healing rank waits for its parent. */
static void dt__orphan_timers(dt__world *w, int64_t now)
{
    dt__control *ctl = w->control;
    bool         more = false;
    if (!w->tolerant || !ctl->orphan_at || now < ctl->orphan_at || ctl->leave >= DT__LEAVE_RELEASED || ctl->expelled) return;
    ctl->orphan_at = 0;
    for (int r = 0; r < w->size; r++) {
        bool known = r == w->rank || ctl->gone[r] || dt__above_of(w, r) != w->rank, probed = false;
        for (dt__conn *k = ctl->conns; k && !known; k = k->next) {
            known = k->kind == DT__KIND_TREE && k->peer == r && k->state != DT__CONN_BROKEN;
            probed = probed || (k->probe && k->peer == r);
        }
        if (known) ctl->orphan[r] = 0;
        if (known) continue;
        more = true;
        if (!ctl->orphan[r]) ctl->orphan[r] = now;
        if (now - ctl->orphan[r] >= dt__heal_time(w->timeout, 30)) dt__control_expel(w, r, dt__seconds_of(now - ctl->orphan[r]));
        else if (!probed) {
            dt__conn *k = dt__control_dial(w, r, DT__KIND_NEWS, NULL);
            if (k) k->probe = true;
            else if (errno == ECONNREFUSED) dt__control_unreached(w, r, true);
        }
    }
    if (more) ctl->orphan_at = now + DT__ORPHAN_LOOK;
}
/* Is the process of the rank on this machine, and stopped or gone? */
static bool dt__process_stopped(const dt__world *w, int rank)
{
    char    path[48], text[512];
    ssize_t n;
    if (w->sim || w->member[rank].host != w->member[w->rank].host) return false;
    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", w->member[rank].pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT;
    n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    const char *end = strrchr(text, ')'); /* the state follows the name in parentheses */
    return end && end[1] == ' ' && strchr("TtZX", end[2]) != NULL;
}
/* A connection to rank failed. If nobody listens there, the rank died, or left if the previous parent left; otherwise its
   fate is unknown (DT__LOST). */
static void dt__control_unreached(dt__world *w, int rank, bool refused)
{
    char text[256], who[160];
    bool left = w->control->lost == DT__LEFT;
    refused = refused || dt__process_stopped(w, rank);
    w->control->heal_since = 0;
    snprintf(text, sizeof text, "%s %s%s", dt__rank_text(w, rank, who, sizeof who), left ? "left" : "died",
             refused ? "" : ", or cannot be reached");
    dt__control_gone(w, rank, left ? DT__LEFT : refused ? DT__DIED : DT__LOST, text, NULL);
}
static void dt__control_release(dt__world *w, const dt__conn *from) /* lets this rank and all ranks below it leave */
{
    dt__block *b = dt__block_new(DT__C_LEAVE_DOWN, w->rank, NULL, 0, NULL, 0);
    dt__control_flood(w, b, from);
    dt__block_unref(b);
    w->control->leave = DT__LEAVE_RELEASED;
    w->control->release_deadline = dt__comm_now() + DT__RELEASE_TIME;
}
/* Healing: this rank dials its new parent until it is accepted or until it is clear that the parent is gone:
   - nobody listens at its port,
   - nothing has come from there for half of the timeout (1 to 5 s), or for 1 s if its process on this machine is gone or
     stopped (a launcher may keep the port of rank 0 open),
   - the deadline has passed: the timeout (1 to 30 s).
   A connection that is closed or reset in the handshake proves nothing: a busy rank does that, too. */
static int64_t dt__heal_time(double s, double most) { return dt__ns_of(s < 1 ? 1 : s > most ? most : s); }
static void dt__heal_failed(dt__world *w, int rank, bool refused)
{
    dt__control *ctl = w->control;
    int64_t      now = dt__comm_now(), wait = (now - ctl->heal_since) / 8, quiet = now - ctl->heal_heard;
    if (refused || !ctl->heal_since || now >= ctl->heal_since + dt__heal_time(w->timeout, 30) ||
        quiet >= dt__heal_time(w->timeout / 2, 5) || (quiet >= DT__REDIAL_TIME && dt__process_stopped(w, rank)))
        dt__control_unreached(w, rank, refused);
    else ctl->heal_after = now + (wait < DT__LINK_RETRY ? DT__LINK_RETRY : wait > 100 * DT__NS_PER_MS ? 100 * DT__NS_PER_MS : wait);
}
static bool dt__heal_needed(const dt__world *w)
{
    const dt__control *ctl = w->control;
    return w->rank != 0 && !ctl->parent && !ctl->healing && ctl->started && w->joined && !ctl->expelled;
}
static void dt__control_heal(dt__world *w)
{
    dt__control *ctl = w->control;
    while (!ctl->parent && !ctl->healing && ctl->leave < DT__LEAVE_RELEASED && !ctl->expelled) {
        if (ctl->leave != DT__LEAVE_NO && ctl->leave_sent) { /* the whole subtree is leaving: no parent is needed */
            dt__control_release(w, NULL);
            return;
        }
        int     r = dt__control_above(w);
        int64_t now = dt__comm_now();
        if (r < 0 || !ctl->heal_since || ctl->heal_rank != r) {
            ctl->heal_rank = r;
            ctl->heal_since = ctl->heal_heard = r < 0 ? 0 : now;
            ctl->heal_after = 0;
        }
        if (r < 0 || now < ctl->heal_after) return;
        ctl->healing = dt__control_dial(w, r, DT__KIND_TREE, NULL);
        if (!ctl->healing) dt__heal_failed(w, r, errno == ECONNREFUSED);
    }
}

/* ---- deaths and aborts */
static void dt__threads_part(dt_comm *c, int rank, int how, uint64_t done, const char *why); /* >>shared */
static void dt__comm_gone(dt__world *w, dt_comm *c, int rank, int how, const char *text)
{
    char more[768];
    if (how == DT__LEFT && !c->members) return;
    for (int i = 0; i < dt__comm_known(c); i++)
        if (c->member[i] == rank) {
            if (i != rank) snprintf(more, sizeof more, "%.680s [rank %d of this communicator]", text, i);
            /* A rank that left had finished some collectives; its DT__C_PART, which says how many, is lost if a rank on the
               way left as well. Then collectives go on: its bytes are on their way, or dt__tcp_gone ends them. */
            uint64_t done = how == DT__LEFT ? UINT64_MAX : 0;
            if (c->members && rank != w->rank) dt__members_gone(c, i, how, done, i == rank ? text : more);
            else dt__comm_failed(c, DT_COMM_ERR_PEER, i, i == rank ? text : more);
            return;
        }
}
/* A member has left a tolerant communicator, or was expelled. */
static void dt__comm_part(dt_comm *c, const dt__cpart *a, const char *text)
{
    if (c->id != a->comm || !c->members || a->rank < 0 || a->rank >= dt__comm_known(c)) return;
    if (a->rank != c->rank) dt__members_gone(c, a->rank, a->how, a->done, text);
    else if (!c->members->parted) dt__comm_failed(c, DT_COMM_ERR_PEER, c->rank, text);
}
static void dt__control_part(dt__world *w, const dt__cpart *a, const char *text, const dt__conn *from)
{
    dt__control *ctl = w->control;
    dt__cpart    known;
    for (int i = 0; i < ctl->nparts && i < DT__PARTS_KEPT; i++) {
        memcpy(&known, dt__block_body(ctl->parts[i]), sizeof known);
        if (known.comm == a->comm && known.rank == a->rank) return;
    }
    dt__block *b = dt__block_new(DT__C_PART, w->rank, a, sizeof *a, text, strnlen(text, DT__CTEXT));
    if (!b) return;
    dt__block_unref(ctl->parts[ctl->nparts % DT__PARTS_KEPT]);
    ctl->parts[ctl->nparts % DT__PARTS_KEPT] = b;
    ctl->nparts = ctl->nparts + 1 < 2 * DT__PARTS_KEPT ? ctl->nparts + 1 : DT__PARTS_KEPT;
    for (dt_comm *c = w->comms; c; c = c->next) dt__comm_part(c, a, text);
    dt__control_flood(w, b, from);
    pthread_cond_broadcast(&ctl->cond);
}
DT__INSIDE void dt__members_part(dt_comm *c, int rank, int how, const char *why)
{
    dt__world *w = c->world;
    dt__cpart  a;
    memset(&a, 0, sizeof a);
    a.comm = c->id;
    a.rank = rank;
    a.how = how;
    a.done = rank == c->rank && how == DT__LEFT ? __atomic_load_n(&c->done, __ATOMIC_ACQUIRE) : 0;
    if (rank == c->rank) {
        pthread_mutex_lock(&c->members->lock);
        bool said = c->members->parted;
        c->members->parted = true;
        pthread_mutex_unlock(&c->members->lock);
        if (said) return;
    }
    if (w && w->control) {
        pthread_mutex_lock(&w->lock);
        dt__control_part(w, &a, why, NULL);
        pthread_mutex_unlock(&w->lock);
        dt__control_wake(w);
    } else if (c->threads && c->shared) dt__threads_part(c, rank, how, a.done, why);
}
static void dt__control_gone(dt__world *w, int rank, int how, const char *text, const dt__conn *from)
{
    dt__control *ctl = w->control;
    dt__cdeath   d;
    if (rank == w->rank) {
        dt__control_expelled(w, text);
        return;
    }
    if (ctl->gone[rank] || ctl->leave >= DT__LEAVE_RELEASED) return;
    ctl->gone[rank] = (uint8_t)how;
    ctl->ngone++;
    bool head = true;
    for (int r = 0; r < rank; r++) head = head && ctl->gone[r];
    if (head) ctl->head_gone = dt__comm_now();
    ctl->orphan_at = dt__comm_now() + DT__ORPHAN_LOOK;
    if (how != DT__LEFT) {
        if (ctl->ndied++ == 0) snprintf(ctl->first_death, sizeof ctl->first_death, "%s", text);
        dt__control_logf(w, w->tolerant ? 3 : 1, "rank %d: %s", w->rank, text); /* tolerant: the program learns of it */
    } else dt__control_logf(w, 3, "rank %d: %s", w->rank, text);
    for (dt_comm *c = w->comms; c; c = c->next) dt__comm_gone(w, c, rank, how, text);
    d.rank = rank;
    d.how = how;
    dt__block *b = dt__block_new(DT__C_DEATH, rank, &d, sizeof d, text, strnlen(text, DT__CTEXT));
    dt__control_flood(w, b, from);
    dt__block_unref(b);
    /* if the rank still runs, it receives the DT__C_DEATH about itself */
    for (dt__conn *k = ctl->conns; k && how != DT__LEFT; k = k->next) {
        if (k->peer != rank || k == from || !dt__conn_in_tree(k)) continue;
        if (k == ctl->parent) ctl->lost = DT__DIED;
        dt__conn_flush(k);
        k->end_expected = true;
        dt__conn_break(k);
    }
    dt__meet_fail(w, ctl->meet_seq > ctl->root.seq ? ctl->meet_seq : ctl->root.seq, text, from);
    if (w->rank == 0 && ctl->join != DT__JOIN_COMPLETE) dt__register_fail(w, DT_COMM_ERR_JOIN, text);
    pthread_cond_broadcast(&ctl->cond);
}
/* The other ranks have declared this rank dead and continue without it. */
DT__INSIDE void dt__control_expelled(dt__world *w, const char *why)
{
    dt__control *ctl = w->control;
    char         text[DT__CTEXT + 1];
    if (ctl->expelled || ctl->leave >= DT__LEAVE_RELEASED) return;
    snprintf(text, sizeof text, "the other ranks have declared this rank, rank %d, dead: %.500s", w->rank, why);
    dt__control_logf(w, 1, "%s", text);
    ctl->expelled = true;
    ctl->gone[w->rank] = DT__DIED;
    ctl->ngone++;
    if (ctl->ndied++ == 0) snprintf(ctl->first_death, sizeof ctl->first_death, "%.255s", text);
    for (dt_comm *c = w->comms; c; c = c->next) dt__comm_gone(w, c, w->rank, DT__DIED, text);
    for (dt__conn *k = ctl->conns; k; k = k->next)
        if (k->kind == DT__KIND_TREE) {
            k->end_expected = true;
            dt__conn_break(k);
        }
    if (ctl->meeting && ctl->meet_state == 0) ctl->meet_state = DT_COMM_ERR_PEER;
    pthread_cond_broadcast(&ctl->cond);
}
static void dt__control_doing(const dt__world *w, const dt__cstate *s, char *buf, size_t nbytes)
{
    if (!s->has) snprintf(buf, nbytes, "%s", "");
    else if (s->seq > s->done) snprintf(buf, nbytes, "; it was in %s #%" PRIu64, dt__coll_word(w, s->doing), s->seq);
    else if (s->seq)
        snprintf(buf, nbytes, "; it was in its program after %s #%" PRIu64, dt__coll_word(w, s->doing), s->seq);
    else snprintf(buf, nbytes, "; it was in its program, before its first collective");
}
/* Notes are up to 250 ms old. For a rank of this machine the shared segment has its latest operation. */
static void dt__control_slot(dt__world *w, int rank, dt__cstate *s)
{
    uint64_t latest = 0, done;
    for (dt_comm *c = w->comms; c; c = c->next)
        for (int i = 0; i < dt__comm_known(c); i++) {
            dt__frame f;
            if (c->member[i] != rank || !dt__shared_last(c, i, &f, &done) || f.sent < latest) continue;
            latest = f.sent;
            s->has = 1;
            s->comm = c->id;
            s->seq = f.seq + 1;
            s->done = done;
            s->doing = (uint32_t)f.coll + 1;
        }
}
/* A connection has ended. */
DT__INSIDE void dt__conn_lost(dt__world *w, dt__conn *k, const char *how)
{
    dt__control *ctl = w->control;
    char         text[768], who[160], doing[120];
    int          state = dt__conn_last_state(k);
    dt__conn_break(k);
    if (k == ctl->parent) ctl->lost = k->end_expected ? DT__LEFT : DT__DIED;
    if (state == DT__CONN_CLOSING || k->end_expected || k->peer < 0) return;
    if (ctl->leave >= DT__LEAVE_RELEASED || ctl->expelled) return;
    int error = errno;
    if (k == ctl->above) {
        snprintf(text, sizeof text, "rank %d left while this rank was joining (%s); %s", k->peer, how, ctl->missing);
        dt__register_fail(w, DT_COMM_ERR_JOIN, text);
        return;
    }
    if (k->kind == DT__KIND_REGISTER && ctl->join != DT__JOIN_COMPLETE) {
        if (ctl->registered[k->peer] == DT__REG_ADMITTED) ctl->registered[k->peer] = DT__REG_NO;
        if (state != DT__CONN_READY) return; /* it has not registered: perhaps it rejected this rank */
        if (w->rank == 0) dt__register_undo(w, k->peer);
        else if (ctl->above) dt__conn_send(ctl->above, DT__C_UNREGISTER, k->peer, NULL, 0);
        return;
    }
    if ((k->kind != DT__KIND_TREE && k->kind != DT__KIND_REGISTER) || state != DT__CONN_READY) return;
    dt__control_slot(w, k->peer, &k->note);
    dt__control_doing(w, &k->note, doing, sizeof doing);
    snprintf(text, sizeof text, "%s died (%s)%s", dt__rank_text(w, k->peer, who, sizeof who), how, doing);
    bool far = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
    if (!(ctl->leave != DT__LEAVE_NO && ctl->leave_sent && k == ctl->parent))
        dt__control_gone(w, k->peer, far ? DT__LOST : DT__DIED, text, k);
}
static bool dt__abort_heard(const dt__control *ctl, uint64_t comm)
{
    dt__cabort a;
    for (int i = 0; i < ctl->naborts && i < DT__ABORTS; i++) {
        memcpy(&a, dt__block_body(ctl->aborts[i]), sizeof a);
        if (a.comm == comm) return true;
    }
    return false;
}
static void dt__comm_aborted(dt_comm *c, int status, int rank, const char *text)
{
    if (c->members) dt__members_halt(c, status, 0, text);
    else dt__comm_failed(c, status, rank >= 0 && rank < c->size ? rank : -1, text);
}
static void dt__control_abort(dt__world *w, uint64_t comm, int status, int rank, const char *text, const dt__conn *from)
{
    dt__control *ctl = w->control;
    dt__cabort   a;
    if (dt__abort_heard(ctl, comm)) return;
    a.comm = comm;
    a.status = status;
    a.rank = rank;
    dt__block *b = dt__block_new(DT__C_ABORT, w->rank, &a, sizeof a, text, strnlen(text, DT__CTEXT));
    if (!b) return;
    dt__block_unref(ctl->aborts[ctl->naborts % DT__ABORTS]);
    ctl->aborts[ctl->naborts % DT__ABORTS] = b;
    ctl->naborts = ctl->naborts + 1 < 2 * DT__ABORTS ? ctl->naborts + 1 : DT__ABORTS;
    for (dt_comm *c = w->comms; c; c = c->next)
        if (c->id == comm) dt__comm_aborted(c, status, rank, text);
    dt__control_flood(w, b, from);
    pthread_cond_broadcast(&ctl->cond);
}
DT__INSIDE void dt__world_abort_id(dt__world *w, uint64_t comm, int status, int rank, const char *text)
{
    if (!w || !w->control) return;
    pthread_mutex_lock(&w->lock);
    dt__control_abort(w, comm, status, rank, text, NULL);
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
}
DT__INSIDE void dt__world_abort(dt__world *w, dt_comm *c, int status, int rank, const char *text)
{
    char cut[DT__CTEXT + 1];
    snprintf(cut, sizeof cut, "%s", text);
    dt__comm_failed(c, status, rank, cut);
    dt__world_abort_id(w, c->id, status, rank, cut);
}
/* c fails from now on when one of its ranks dies; also at once, if one is already dead or c was already aborted. */
DT__INSIDE void dt__world_add(dt__world *w, dt_comm *c)
{
    dt__control *ctl = w->control;
    char         text[DT__CTEXT + 1], who[160];
    dt__cabort   a;
    pthread_mutex_lock(&w->lock);
    c->next = w->comms;
    w->comms = c;
    for (int i = 0; ctl && i < ctl->naborts && i < DT__ABORTS; i++) {
        memcpy(&a, dt__block_body(ctl->aborts[i]), sizeof a);
        if (a.comm != c->id) continue;
        snprintf(text, sizeof text, "%.*s", (int)(ctl->aborts[i]->nbytes - sizeof(dt__chead) - sizeof a),
                 (char *)dt__block_body(ctl->aborts[i]) + sizeof a);
        dt__comm_aborted(c, a.status, a.rank, text);
    }
    for (int i = 0; ctl && i < ctl->nparts && i < DT__PARTS_KEPT; i++) {
        dt__cpart part;
        memcpy(&part, dt__block_body(ctl->parts[i]), sizeof part);
        snprintf(text, sizeof text, "%.*s", (int)(ctl->parts[i]->nbytes - sizeof(dt__chead) - sizeof part),
                 (char *)dt__block_body(ctl->parts[i]) + sizeof part);
        dt__comm_part(c, &part, text);
    }
    for (int i = 0; ctl && i < dt__comm_known(c); i++)
        if (ctl->gone[c->member[i]]) {
            snprintf(text, sizeof text, "%s %s", dt__rank_text(w, c->member[i], who, sizeof who),
                     ctl->gone[c->member[i]] == DT__LEFT ? "has left" : "died before");
            if (c->members) dt__comm_gone(w, c, c->member[i], ctl->gone[c->member[i]], text);
            else dt__comm_gone(w, c, c->member[i], DT__DIED, text); /* also if it has left */
        }
    for (int r = dt__comm_known(c); c->first && c->members && r < w->size; r++) dt__members_joined(c, r);
    pthread_mutex_unlock(&w->lock);
    if (ctl) dt__control_wake(w); /* from now on it sends notes */
}
DT__INSIDE void dt__world_remove(dt__world *w, dt_comm *c)
{
    pthread_mutex_lock(&w->lock);
    for (dt_comm **p = &w->comms; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            break;
        }
    if (w->control) { /* close the connections for c that were not taken */
        dt__arrived **p = &w->control->arrived, *last = NULL;
        while (*p) {
            dt__arrived *a = *p;
            if (a->comm == c->id) {
                *p = a->next;
                close(a->fd);
                DT_COMM_FREE(a);
                w->control->narrived--;
            } else last = a, p = &a->next;
        }
        w->control->arrived_last = last;
        for (dt__conn *k = w->control->conns; k; k = k->next) /* dialed for c */
            if (k->kind == DT__KIND_LINK && !k->shake.server && k->shake.c.comm == c->id) dt__conn_break(k);
        for (int i = 0; i < w->control->nlinked;)
            if (w->control->linked[i].comm == c->id) w->control->linked[i] = w->control->linked[--w->control->nlinked];
            else i++;
    }
    pthread_mutex_unlock(&w->lock);
}

DT__INSIDE int dt__world_gone(dt__world *w, int rank) /* DT__ALIVE ..., as far as this rank knows */
{
    if (!w->control) return 0;
    pthread_mutex_lock(&w->lock);
    int gone = w->control->gone[rank];
    pthread_mutex_unlock(&w->lock);
    return gone;
}

/* ---- meetings: numbers go up to rank 0, and the largest comes down */
static void dt__meet_fail(dt__world *w, uint64_t seq, const char *text, const dt__conn *from)
{
    dt__control *ctl = w->control;
    dt__cmeet    m;
    if (seq == 0 || seq <= ctl->meet_failed) return;
    if (!ctl->meeting && ctl->meet_seq >= seq && !ctl->root_on) return; /* this rank has already finished it */
    ctl->meet_failed = seq;
    snprintf(ctl->meet_text, sizeof ctl->meet_text, "%s", text);
    if (ctl->meeting && ctl->meet_seq == seq && ctl->meet_state == 0) ctl->meet_state = DT_COMM_ERR_PEER;
    memset(&m, 0, sizeof m);
    m.seq = seq;
    dt__block *b = dt__block_new(DT__C_MEET_FAIL, w->rank, &m, sizeof m, text, strnlen(text, DT__CTEXT));
    dt__control_flood(w, b, from);
    dt__block_unref(b);
    ctl->root_on = false;
    if (ctl->root.seq < seq) ctl->root.seq = seq;
    pthread_cond_broadcast(&ctl->cond);
}
static void dt__meet_down(dt__world *w, const dt__cmeet *m)
{
    dt__control *ctl = w->control;
    if (!ctl->meeting || m->seq != ctl->meet_seq || ctl->meet_state != 0) return;
    ctl->met = *m;
    ctl->meet_state = 1;
    pthread_cond_broadcast(&ctl->cond);
}
static void dt__meet_take(dt__world *w, const dt__cmeet *m) /* rank 0 receives the number of a rank */
{
    dt__control *ctl = w->control;
    char         text[256];
    if (m->rank < 0 || m->rank >= w->size || m->seq <= ctl->meet_failed) return;
    if (!ctl->root_on) { /* the first one of a meeting */
        if (m->seq <= ctl->root.seq) return;
        ctl->root = *m;
        if (ctl->ngone) {
            dt__meet_fail(w, m->seq, ctl->ndied ? ctl->first_death : "a rank has left", NULL);
            return;
        }
        ctl->root_on = true;
        ctl->root_done = 0;
        memset(ctl->root_came, 0, (size_t)w->size);
        ctl->root_deadline = dt__comm_now() + dt__ns_of(w->timeout);
    }
    if (m->seq != ctl->root.seq || ctl->root_came[m->rank]) {
        snprintf(text, sizeof text, "rank %d is in meeting %" PRIu64 " of the world, others are in %" PRIu64, m->rank, m->seq, ctl->root.seq);
        dt__meet_fail(w, ctl->root.seq > m->seq ? ctl->root.seq : m->seq, text, NULL);
        return;
    }
    ctl->root_came[m->rank] = 1;
    if (m->value > ctl->root.value || (m->value == ctl->root.value && m->rank < ctl->root.rank)) ctl->root = *m;
    if (++ctl->root_done < w->size) return;
    ctl->root_on = false;
    dt__block *b = dt__block_new(DT__C_MEET_DOWN, 0, &ctl->root, sizeof ctl->root, NULL, 0);
    dt__control_flood(w, b, NULL);
    dt__block_unref(b);
    dt__meet_down(w, &ctl->root);
}
static void dt__meet_timers(dt__world *w, int64_t now)
{
    dt__control *ctl = w->control;
    int          rank[8] = { 0 }, n = 0;
    char         list[160], text[256];
    if (!ctl->root_on || now < ctl->root_deadline) return;
    for (int r = 0; r < w->size; r++)
        if (!ctl->root_came[r]) {
            if (n < 8) rank[n] = r;
            n++;
        }
    dt__rank_list(list, sizeof list, rank, n);
    snprintf(text, sizeof text, "a meeting of the world took longer than %g s: %s did not come", w->timeout, list);
    dt__meet_fail(w, ctl->root.seq, text, NULL);
}
static int dt__meet(dt__world *w, int64_t value, dt__cmeet *out, int64_t deadline, char *text, size_t nbytes)
{
    dt__control    *ctl = w->control;
    dt__cmeet       m;
    struct timespec t = dt__timespec_of(deadline);
    memset(&m, 0, sizeof m);
    pthread_mutex_lock(&w->lock);
    while (ctl->meeting) pthread_cond_wait(&ctl->cond, &w->lock); /* another thread's */
    m.seq = ++ctl->meet_seq;
    m.value = value;
    m.rank = w->rank;
    ctl->meeting = true;
    ctl->meet_state = m.seq <= ctl->meet_failed ? DT_COMM_ERR_PEER : 0;
    if (ctl->ngone) {
        ctl->meet_state = DT_COMM_ERR_PEER;
        snprintf(ctl->meet_text, sizeof ctl->meet_text, "%s", ctl->ndied ? ctl->first_death : "a rank has left");
    }
    if (ctl->meet_state == 0 && w->rank == 0) dt__meet_take(w, &m);
    else if (ctl->meet_state == 0 && ctl->parent) dt__conn_send(ctl->parent, DT__C_MEET_UP, w->rank, &m, sizeof m);
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
    pthread_mutex_lock(&w->lock);
    while (ctl->meet_state == 0)
        if (pthread_cond_timedwait(&ctl->cond, &w->lock, &t) == ETIMEDOUT && ctl->meet_state == 0) {
            dt__meet_fail(w, m.seq, "a meeting of the world got no answer from rank 0", NULL);
            ctl->meet_state = DT_COMM_ERR_TIMEOUT;
        }
    int status = ctl->meet_state == 1 ? 0 : ctl->meet_state;
    if (status) snprintf(text, nbytes, "%s", ctl->meet_text);
    else if (out) *out = ctl->met;
    ctl->meeting = false;
    pthread_cond_broadcast(&ctl->cond);
    pthread_mutex_unlock(&w->lock);
    return status;
}
DT__INSIDE int dt__world_meet(dt__world *w, int64_t value, int64_t *most, int *who)
{
    char      text[768];
    dt__cmeet m;
    memset(&m, 0, sizeof m);
    m.value = value;
    /* 1 s longer than rank 0 waits: rank 0 gives up first, and names the missing ranks */
    int status = w->size == 1 ? 0 : dt__meet(w, value, &m, dt__comm_now() + dt__ns_of(w->timeout) + DT__NS_PER_S, text, sizeof text);
    if (status) return dt__comm_bad(status, "%s", text);
    if (most) *most = m.value;
    if (who) *who = m.rank;
    return 0;
}

/* ---- inquiries: which rank is at fault?
   A rank whose operation makes no progress asks its parent (DT__C_ASK), and so on up to the root. The root pings all ranks,
   collects their states, names the rank at fault and fails the communicator on all ranks. A rank whose parent does not
   answer blames the parent. States: DT__INQUIRY_... */
static void dt__state_of(dt__world *w, uint64_t comm, dt__cstate *s)
{
    s->rank = w->rank;
    for (dt_comm *c = w->comms; c; c = c->next) {
        if (c->id != comm) continue;
        s->has = 1;
        s->seq = __atomic_load_n(&c->seq, __ATOMIC_ACQUIRE);
        s->done = __atomic_load_n(&c->done, __ATOMIC_ACQUIRE);
        s->doing = __atomic_load_n(&c->doing, __ATOMIC_ACQUIRE);
        s->age = dt__comm_now() - __atomic_load_n(&c->since, __ATOMIC_ACQUIRE);
        if (s->doing == 0 && s->seq == s->done && w->control->note.comm == comm) s->doing = w->control->note_doing;
    }
}
static void dt__inquiry_free(dt__inquiry *q)
{
    DT_COMM_FREE(q->member);
    DT_COMM_FREE(q->answer);
    memset(q, 0, sizeof *q);
}
static int dt__ask_index(const dt__inquiry *q, int rank) /* rank in the communicator of a rank of the world */
{
    for (int i = 0; i < q->ask.n; i++)
        if (q->member[i] == rank) return i;
    return q->ask.n == 0 ? rank : -1;
}
static size_t dt__ask_title(const dt__world *w, const dt__inquiry *q, char *buf, size_t nbytes)
{
    int asker = dt__ask_index(q, q->ask.asker), peer = dt__ask_index(q, q->ask.peer);
    if (q->ask.doing & DT__ASK_MESSAGE) {
        char who[32], tag[32];
        snprintf(who, sizeof who, peer < 0 ? "any rank" : "rank %d", peer);
        snprintf(tag, sizeof tag, q->ask.tag < 0 ? "any tag" : "tag %d", q->ask.tag);
        return (size_t)snprintf(buf, nbytes, "rank %d: %s %s (%s) made no progress for %g s: ", asker,
                                q->ask.doing & DT__ASK_SEND ? "dt_comm_send to" : "dt_comm_recv from", who, tag, q->ask.timeout);
    }
    return (size_t)snprintf(buf, nbytes, "%s #%" PRIu64 " made no progress for %g s: ", dt__coll_word(w, q->ask.doing),
                            q->ask.seq, q->ask.timeout);
}
static void dt__inquiry_end(dt__world *w, dt__inquiry *q, int rank, const char *text)
{
    dt__cask a = q->ask;
    int      index = rank < 0 ? -1 : dt__ask_index(q, rank);
    dt__inquiry_free(q);
    dt__control_abort(w, a.comm, DT_COMM_ERR_TIMEOUT, index, text, NULL);
}
/* Sends the last verdict directly to the neighbours of a silent rank, which cannot get it through that rank. */
static void dt__inquiry_notify(dt__world *w, int silent)
{
    dt__control *ctl = w->control;
    if (ctl->naborts == 0) return;
    for (int k = 0; k <= DT__TREE; k++) {
        int r = k ? silent * DT__TREE + k : silent > 0 ? (silent - 1) / DT__TREE : -1;
        if (r < 0 || r >= w->size || r == w->rank || r == silent || ctl->gone[r]) continue;
        dt__control_dial(w, r, DT__KIND_NEWS, ctl->aborts[(ctl->naborts - 1) % DT__ABORTS]);
    }
}
static void dt__inquiry_blame(dt__world *w, dt__inquiry *q, int rank) /* blames a rank that does not answer */
{
    char   text[DT__CTEXT], who[160];
    size_t used = dt__ask_title(w, q, text, sizeof text);
    if (used < sizeof text)
        snprintf(text + used, sizeof text - used, "%s does not answer: it is stopped or unreachable",
                 dt__rank_text(w, rank, who, sizeof who));
    dt__inquiry_end(w, q, rank, text);
    dt__inquiry_notify(w, rank);
}
typedef struct dt__silent { /* ranks that do not answer */
    int rank[4], n;
} dt__silent;
/* Adds to the text that rank r does not answer. Of the silent ranks on its path to the root, only the topmost is blamed. */
static size_t dt__inquiry_silent(dt__world *w, const dt__inquiry *q, int r, dt__silent *s, char *text, size_t used, bool more)
{
    const dt__control *ctl = w->control;
    char               who[160];
    int                top = r;
    if (q->answer[r].has >= 0 || ctl->gone[r]) return used;
    for (int up = r; up > 0;) {
        up = (up - 1) / DT__TREE;
        if (q->answer[up].has < 0 && !ctl->gone[up]) top = up;
    }
    for (int j = 0; j < s->n; j++)
        if (s->rank[j] == top) return used;
    if (s->n == 4) return used;
    s->rank[s->n++] = top;
    if (used >= DT__CTEXT) return used;
    return used + (size_t)snprintf(text + used, DT__CTEXT - used, "%s%s does not answer: it is stopped or unreachable",
                                   more || s->n > 1 ? "; " : "", dt__rank_text(w, top, who, sizeof who));
}
static void dt__inquiry_decide(dt__world *w, dt__inquiry *q)
{
    dt__control *ctl = w->control;
    char         text[DT__CTEXT], who[160];
    size_t       used = dt__ask_title(w, q, text, sizeof text);
    int          n = q->ask.n ? q->ask.n : w->size, named = 0, first = -1;
    dt__silent   silent;
    memset(&silent, 0, sizeof silent);
    for (int i = 0; i < n; i++) used = dt__inquiry_silent(w, q, q->ask.n ? q->member[i] : i, &silent, text, used, false);
    int nsilent = named = silent.n;
    if (nsilent) first = silent.rank[0];
    bool message = (q->ask.doing & DT__ASK_MESSAGE) != 0; /* only the peer can be at fault, and it has no number of it */
    for (int i = 0; i < n && !nsilent && named < 4; i++) {
        int               r = q->ask.n ? q->member[i] : i;
        const dt__cstate *s = &q->answer[r];
        if (message && r != q->ask.peer) continue;
        if (ctl->gone[r] || s->has == 0) {
            if (used < sizeof text)
                used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %s", named++ ? "; " : "",
                                         dt__rank_text(w, r, who, sizeof who),
                                         ctl->gone[r] == DT__LEFT ? "has left"
                                         : ctl->gone[r]           ? "died"
                                                                  : "does not have this communicator, or has freed it");
        } else if (message) {
            if (used < sizeof text)
                used += (size_t)snprintf(text + used, sizeof text - used, "%s has not %s it", dt__rank_text(w, r, who, sizeof who),
                                         q->ask.doing & DT__ASK_SEND ? "received" : "sent");
            if (used < sizeof text && s->seq > s->done)
                used += (size_t)snprintf(text + used, sizeof text - used, "; it is in %s #%" PRIu64 " since %.1f s",
                                         dt__coll_word(w, s->doing), s->seq, dt__seconds_of(s->age));
            named++;
        } else if (s->seq < q->ask.seq) {
            if (used < sizeof text)
                used += (size_t)snprintf(text + used, sizeof text - used, "%s%s has not called it", named++ ? "; " : "",
                                         dt__rank_text(w, r, who, sizeof who));
            if (used < sizeof text && s->seq > 0)
                used += (size_t)snprintf(text + used, sizeof text - used, " (last: %s #%" PRIu64 ", since %.1f s)",
                                         dt__coll_word(w, s->doing), s->seq, dt__seconds_of(s->age));
            else if (used < sizeof text)
                used += (size_t)snprintf(text + used, sizeof text - used, " (it has called nothing before either)");
        } else continue;
        if (first < 0) first = r;
    }
    if (message && !named && q->ask.peer < 0) {
        if (used < sizeof text) snprintf(text + used, sizeof text - used, "no rank has sent such a message, and all ranks answer");
    } else if (!named && used < sizeof text) {
        first = q->ask.peer;
        if (first >= 0 && first < w->size)
            snprintf(text + used, sizeof text - used,
                     "all ranks have called it, but rank %d receives nothing from %s; is the network between them blocked?",
                     q->ask.asker, dt__rank_text(w, first, who, sizeof who));
        else
            snprintf(text + used, sizeof text - used, "all ranks have called it, but rank %d makes no progress",
                     q->ask.asker);
    }
    /* All ranks of the communicator answer. They may wait for a rank that is only in another one. */
    if (!nsilent && used < sizeof text) used += strlen(text + used);
    for (int r = 0; r < w->size && !nsilent; r++) used = dt__inquiry_silent(w, q, r, &silent, text, used, true);
    dt__inquiry_end(w, q, first, text);
    for (int j = 0; j < silent.n; j++) dt__inquiry_notify(w, silent.rank[j]);
}
static void dt__inquiry_begin(dt__world *w, const dt__cask *ask, const int32_t *member, bool own)
{
    dt__control *ctl = w->control;
    dt__inquiry *q = NULL;
    if (dt__abort_heard(ctl, ask->comm)) return;
    for (int i = 0; i < DT__INQUIRIES; i++) {
        dt__inquiry *s = &ctl->inquiry[i];
        if (s->state && s->ask.comm == ask->comm) {
            /* this rank asks, too, so it waits for the verdict */
            if (own && s->state != DT__INQUIRY_COLLECT) s->ask.asker = w->rank;
            return;
        }
        if (!s->state && !q) q = s;
    }
    if (!q) return;
    q->ask = *ask;
    q->begin = dt__comm_now();
    q->id = ++ctl->inquiry_id;
    q->member = (int32_t *)DT_COMM_MALLOC((size_t)ask->n * sizeof *member + 1);
    if (q->member && ask->n) memcpy(q->member, member, (size_t)ask->n * sizeof *member);
    if (!q->member) return;
    if (dt__control_is_root(w)) {
        q->answer = (dt__cstate *)DT_COMM_MALLOC((size_t)dt__world_room(w) * sizeof *q->answer);
        if (!q->answer) {
            dt__inquiry_free(q);
            return;
        }
        memset(q->answer, 0, (size_t)dt__world_room(w) * sizeof *q->answer);
        for (int r = 0; r < dt__world_room(w); r++) q->answer[r].has = -1;
        q->answer[w->rank].has = 0;
        dt__state_of(w, ask->comm, &q->answer[w->rank]);
        q->state = DT__INQUIRY_COLLECT;
        dt__cping p;
        p.id = q->id;
        p.comm = ask->comm;
        dt__block *b = dt__block_new(DT__C_PING, w->rank, &p, sizeof p, NULL, 0);
        dt__control_flood(w, b, NULL);
        dt__block_unref(b);
    } else {
        q->state = DT__INQUIRY_SENT;
        if (ctl->parent) {
            dt__block *b = dt__block_new(DT__C_ASK, w->rank, ask, sizeof *ask, member, (size_t)ask->n * sizeof *member);
            dt__conn_queue(ctl->parent, b);
            dt__block_unref(b);
            dt__conn_send(ctl->parent, DT__C_HOP_PING, w->rank, NULL, 0);
        }
    }
}
static void dt__inquiry_timers(dt__world *w, int64_t now)
{
    dt__control *ctl = w->control;
    for (int i = 0; i < DT__INQUIRIES; i++) {
        dt__inquiry *q = &ctl->inquiry[i];
        if (q->state == DT__INQUIRY_COLLECT) {
            bool all = true; /* also those that are not in the communicator: its members may wait for them */
            for (int r = 0; all && r < w->size; r++) all = q->answer[r].has >= 0 || ctl->gone[r];
            if (all || now >= q->begin + DT__INQUIRY_ANSWERS) dt__inquiry_decide(w, q);
        } else if (q->state == DT__INQUIRY_SENT && now >= q->begin + DT__INQUIRY_HOP) {
            if (ctl->parent) dt__inquiry_blame(w, q, ctl->parent->peer);
            else dt__inquiry_free(q);
        } else if (q->state == DT__INQUIRY_WAIT && now >= q->begin + DT__INQUIRY_VERDICT) dt__inquiry_blame(w, q, 0);
    }
}
DT__INSIDE void dt__world_ask(dt__world *w, dt_comm *c, uint64_t seq, int peer, uint32_t message, int tag)
{
    dt__cask ask;
    memset(&ask, 0, sizeof ask);
    ask.tag = tag;
    ask.comm = c->id;
    ask.seq = seq;
    ask.timeout = c->timeout;
    ask.doing = message ? message : __atomic_load_n(&c->doing, __ATOMIC_RELAXED);
    ask.peer = peer >= 0 && peer < c->size ? c->member[peer] : -1;
    if (!w || !w->control) { /* no other rank can be asked */
        char text[200];
        snprintf(text, sizeof text, "%s #%" PRIu64 " made no progress for %g s", dt__coll_word(w, ask.doing), seq,
                 c->timeout);
        dt__comm_failed(c, DT_COMM_ERR_TIMEOUT, peer, text);
        return;
    }
    ask.asker = w->rank;
    ask.n = (size_t)c->size * sizeof(int32_t) + sizeof ask <= DT__CFRAME_MAX ? c->size : 0;
    pthread_mutex_lock(&w->lock);
    dt__inquiry_begin(w, &ask, (const int32_t *)c->member, true);
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
}

/* ---- different calls
   Ranks that call different collectives may never exchange a message, so the mismatch must be found in another way. A rank
   that waits for long (dt__watch_after) floods the frame of its call over the tree, once. Every rank compares it with its
   own operation of the same number: with its notes if it has begun that operation, or when it begins it (c->watched). If
   no rank has begun another operation with this number, the missing ranks are only late. */
static dt__frame *dt__watch_of(dt__control *ctl, const dt__frame *f)
{
    return &ctl->watch[(f->comm ^ f->seq * UINT64_C(0x9e3779b97f4a7c15)) >> 58 & (DT__WATCHES - 1)];
}
static void dt__watch_differ(dt__world *w, const dt__frame *a, const dt__frame *b)
{
    char text[DT__CTEXT + 1];
    w->client->frame_differ(a, b, text, sizeof text);
    dt__control_abort(w, a->comm, DT_COMM_ERR_MISMATCH, b->rank, text, NULL);
}
static void dt__watch_take(dt__world *w, const dt__frame *f, const dt__conn *from) /* under the lock */
{
    dt__control *ctl = w->control;
    dt__frame   *seen = dt__watch_of(ctl, f), note;
    uint64_t     print = dt__frame_print(f);
    if (seen->magic && seen->comm == f->comm && seen->seq == f->seq) {
        if (dt__frame_print(seen) != print) dt__watch_differ(w, seen, f);
        return;
    }
    *seen = *f;
    for (dt_comm *c = w->comms; c; c = c->next) {
        if (c->id != f->comm) continue;
        /* this thread sets 'watched', then reads the note; dt__world_begin's caller writes the note, then reads 'watched':
           at least one of them sees what the other has written */
        uint64_t before = __atomic_load_n(&c->watched, __ATOMIC_RELAXED);
        __atomic_exchange_n(&c->watched, before > f->seq ? before : f->seq + 1, __ATOMIC_ACQ_REL);
        const struct dt__note *ring = (const struct dt__note *)__atomic_load_n(&c->note, __ATOMIC_ACQUIRE);
        if (ring && dt__note_get(ring, f->seq, &note) && dt__frame_print(&note) != print) {
            dt__watch_differ(w, f, &note);
            return;
        }
    }
    dt__block *b = dt__block_new(DT__C_WATCH, w->rank, f, sizeof *f, NULL, 0);
    dt__control_flood(w, b, from);
    dt__block_unref(b);
}
DT__INSIDE void dt__world_watch(dt__world *w, const dt__frame *f)
{
    if (!w || !w->control) return;
    pthread_mutex_lock(&w->lock);
    dt__watch_take(w, f, NULL);
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
}
DT__INSIDE void dt__world_begin(dt__world *w, dt_comm *c, const dt__frame *f)
{
    if (!w || !w->control || __atomic_fetch_add(&c->watched, 0, __ATOMIC_ACQ_REL) <= f->seq) return;
    pthread_mutex_lock(&w->lock);
    const dt__frame *seen = dt__watch_of(w->control, f);
    if (seen->magic && seen->comm == f->comm && seen->seq == f->seq && dt__frame_print(seen) != dt__frame_print(f))
        dt__watch_differ(w, seen, f);
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
}

DT__INSIDE void dt__world_settle(dt__world *w)
{
    struct timespec t;
    int64_t         deadline = dt__comm_now() + 500 * DT__NS_PER_MS;
    if (!w || !w->control || w->sim) return; /* the simulator delivers control frames first */
    t = dt__timespec_of(deadline);
    pthread_mutex_lock(&w->lock);
    uint64_t until = w->control->turns + 2; /* the current iteration, and one that begins after now */
    w->control->settling++;
    while (w->control->turns < until) {
        dt__control_wake(w);
        if (pthread_cond_timedwait(&w->control->cond, &w->lock, &t) == ETIMEDOUT) break;
    }
    w->control->settling--;
    pthread_mutex_unlock(&w->lock);
}

/* ---- links and descriptors */
static int dt__arrived_take(dt__world *w, int kind, uint64_t comm, int peer, int stream) /* under the lock */
{
    dt__control *ctl = w->control;
    dt__arrived *before = NULL;
    for (dt__arrived *a = ctl->arrived; a; before = a, a = a->next) {
        if (a->kind != kind || a->comm != comm || a->peer != peer || a->stream != stream) continue;
        int fd = a->fd;
        if (before) before->next = a->next;
        else ctl->arrived = a->next;
        if (ctl->arrived_last == a) ctl->arrived_last = before;
        ctl->narrived--;
        DT_COMM_FREE(a);
        return fd;
    }
    return -1;
}
static void dt__arrived_timers(dt__world *w, int64_t now)
{
    dt__control *ctl = w->control;
    double       keep = w->timeout > w->join_timeout ? w->timeout : w->join_timeout;
    while (ctl->arrived && now > ctl->arrived->since + dt__ns_of(keep)) {
        dt__arrived *a = ctl->arrived;
        dt__control_logf(w, 2, "rank %d: no communicator took the connection of rank %d for communicator %016" PRIx64, w->rank, a->peer,
                     a->comm);
        ctl->arrived = a->next;
        if (!ctl->arrived) ctl->arrived_last = NULL;
        ctl->narrived--;
        close(a->fd);
        DT_COMM_FREE(a);
    }
}
/* Is a connection for this link being made, in either direction? Under the lock. */
static dt__conn *dt__link_pending(dt__world *w, uint64_t comm, int peer, int stream, bool own)
{
    for (dt__conn *k = w->control->conns; k; k = k->next)
        if (k->kind == DT__KIND_LINK && k->peer == peer && k->state != DT__CONN_BROKEN && k->shake.c.comm == comm &&
            k->shake.c.stream == stream && (!own || !k->shake.server))
            return k;
    return NULL;
}
/* The control thread dials; when the handshake is done, the socket is among the arrived ones. */
static void dt__link_dial(dt__world *w, uint64_t comm, int peer, int stream)
{
    dt__addr  a;
    dt__conn *k = NULL;
    int       fd = dt__addr_take(&a, w->member[peer].addr, w->member[peer].addr_len) ? dt__connect(&a) : -1;
    if (fd < 0 || !(k = dt__conn_new(w, fd, DT__KIND_LINK, peer))) {
        dt__close(&fd);
        w->control->dial_after = dt__comm_now() + DT__LINK_RETRY;
        return;
    }
    k->state = DT__CONN_HANDSHAKE;
    if (!dt__shake_client(&k->shake, w, peer, DT__KIND_LINK, comm, stream)) dt__conn_break(k);
}
DT__INSIDE int dt__world_link(dt__world *w, dt_comm *c, int peer, int stream)
{
    char text[DT__CTEXT], who[160];
    bool dialed = false;
    if (peer < 0 || peer >= __atomic_load_n(&w->size, __ATOMIC_ACQUIRE) || peer == w->rank || !w->control) {
        dt__comm_failed(c, DT_COMM_ERR_ARG, -1, "a link needs another rank of the world");
        return DT__FD_FAILED;
    }
    if (!dt__comm_ok(c)) return DT__FD_FAILED;
    int index = -1;
    for (int i = 0; i < c->size; i++)
        if (c->member[i] == peer) index = i;
    pthread_mutex_lock(&w->lock);
    int gone = w->control->gone[peer], fd = dt__arrived_take(w, DT__KIND_LINK, c->id, peer, stream);
    if (fd < 0 && !gone && (peer > w->rank || stream == DT__STREAM_MAIL) && dt__comm_now() >= w->control->dial_after &&
        !dt__link_pending(w, c->id, peer, stream, false)) {
        dt__link_dial(w, c->id, peer, stream);
        dialed = true;
    }
    pthread_mutex_unlock(&w->lock);
    if (dialed) dt__control_wake(w);
    if (fd >= 0) return fd;
    if (!gone) return DT__FD_NOT_YET;
    if (c->members) return DT__FD_NOT_YET; /* the driver ends the messages with this peer */
    snprintf(text, sizeof text, "%s %s", dt__rank_text(w, peer, who, sizeof who), gone == DT__LEFT ? "has left" : "died");
    dt__world_abort(w, c, DT_COMM_ERR_PEER, index, text);
    return DT__FD_FAILED;
}
DT__INSIDE int dt__world_links(dt__world *w, dt_comm *c, int *peer)
{
    int fd = -1;
    if (!w->control) return -1;
    pthread_mutex_lock(&w->lock);
    for (const dt__arrived *a = w->control->arrived; a && fd < 0; a = a->next) {
        if (a->kind != DT__KIND_LINK || a->comm != c->id || a->stream != DT__STREAM_MAIL) continue;
        *peer = -1;
        for (int i = 0; i < c->size; i++)
            if (c->member[i] == a->peer) *peer = i;
        if (*peer >= 0) fd = dt__arrived_take(w, DT__KIND_LINK, c->id, a->peer, DT__STREAM_MAIL);
        if (fd >= 0) break;
    }
    pthread_mutex_unlock(&w->lock);
    return fd;
}
typedef struct dt__fd_msg { /* one byte, with room for a descriptor */
    union {
        size_t align; /* a cmsghdr's */
        char   room[CMSG_SPACE(4 * sizeof(int))];
    } u;
    struct msghdr m;
    struct iovec  v;
    char          byte;
} dt__fd_msg;
static void dt__fd_begin(dt__fd_msg *f, size_t descriptors)
{
    memset(f, 0, sizeof *f);
    f->byte = 'f';
    f->v.iov_base = &f->byte;
    f->v.iov_len = 1;
    f->m.msg_iov = &f->v;
    f->m.msg_iovlen = 1;
    f->m.msg_control = f->u.room;
    f->m.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
}
static int dt__fd_send(int to, int fd, int64_t deadline)
{
    dt__fd_msg f;
    dt__fd_begin(&f, 1);
    struct cmsghdr *h = CMSG_FIRSTHDR(&f.m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    if (fd < 0) f.m.msg_control = NULL, f.m.msg_controllen = 0; /* the byte without a descriptor: there is no descriptor */
    for (;;) {
        ssize_t n = sendmsg(to, &f.m, MSG_NOSIGNAL);
        if (n == 1) return 0;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN && dt__wait_fd(to, POLLOUT, deadline)) continue;
        return -1;
    }
}
static int dt__fd_recv(int from) /* or DT__FD_...; NO_FD: the sender has no descriptor */
{
    dt__fd_msg f;
    int        fd = DT__FD_NO_FD;
    ssize_t    n;
    dt__fd_begin(&f, 4);
    do n = recvmsg(from, &f.m, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) return DT__FD_NOT_YET;
    if (n <= 0) return DT__FD_FAILED;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&f.m); h; h = CMSG_NXTHDR(&f.m, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS && h->cmsg_len == CMSG_LEN(sizeof fd))
            memcpy(&fd, CMSG_DATA(h), sizeof fd);
    return fd;
}
static int dt__fd_gone(dt__world *w, const int *member, int n) /* a member that is gone, or -1; under the lock */
{
    for (int i = 0; i < n; i++)
        if (w->control->gone[member[i]]) return member[i];
    return -1;
}
/* Fetches the descriptor from another rank: it, or DT__FD_NO_FD; another negative value: dt__comm_bad was called. */
static int dt__fd_fetch(dt__world *w, dt_comm *c, uint64_t comm, const int *member, int n, int source, int64_t deadline)
{
    char     text[400], who[160];
    dt__addr a;
    int      gone = -1;
    dt__addr_unix(&a, w->member[source].unix_name);
    int from = dt__dial_until(w, &a, 1, source, DT__KIND_FD, comm, 0, deadline, c, text, sizeof text);
    if (from < 0 && c && !dt__comm_ok(c)) return dt__comm_bad(c->status, "passing a descriptor: %.600s", c->text);
    if (from < 0) return dt__comm_bad(DT_COMM_ERR_PEER, "passing a descriptor: %s", text);
    int got = dt__same_user(from) ? DT__FD_NOT_YET : DT__FD_FAILED;
    for (bool ended = false;;) { /* when the connection ends, wait up to 500 ms for the reason from the control tree */
        int64_t now = dt__comm_now(), next = now + (ended ? DT__NS_PER_MS : 50 * DT__NS_PER_MS);
        if (!ended && got == DT__FD_NOT_YET) got = dt__fd_recv(from);
        if (got == DT__FD_FAILED && !ended && now + 500 * DT__NS_PER_MS < deadline) deadline = now + 500 * DT__NS_PER_MS;
        ended = got == DT__FD_FAILED;
        pthread_mutex_lock(&w->lock);
        gone = dt__fd_gone(w, member, n);
        pthread_mutex_unlock(&w->lock);
        if (got >= 0 || got == DT__FD_NO_FD || now >= deadline || gone >= 0 || (c && !dt__comm_ok(c))) break;
        if (ended) dt__comm_pause(next - now);
        else dt__wait_fd(from, POLLIN, next < deadline ? next : deadline);
    }
    dt__close(&from);
    if (got >= 0 || got == DT__FD_NO_FD) return got;
    dt__rank_text(w, gone >= 0 ? gone : source, who, sizeof who);
    if (gone < 0 && c && !dt__comm_ok(c)) return dt__comm_bad(c->status, "passing a descriptor: %.600s", c->text);
    if (got == DT__FD_FAILED || gone >= 0) return dt__comm_bad(DT_COMM_ERR_PEER, "passing a descriptor: %s died or left", who);
    return dt__comm_bad(DT_COMM_ERR_TIMEOUT, "passing a descriptor: %s sent none within %g s", who, w->timeout);
}
/* Waits until the ranks member[first] ... member[last - 1] ask for the descriptor, and sends it. 0, or negative after
   dt__comm_bad. */
static int dt__fd_give(dt__world *w, dt_comm *c, uint64_t comm, const int *member, int n, int first, int last, int fd,
                       int64_t deadline)
{
    struct timespec t = dt__timespec_of(deadline);
    char            who[160];
    int             gone = -1, bad = -1;
    for (int i = first; i < last && i < n && gone < 0 && bad < 0; i++) {
        int to = -1;
        pthread_mutex_lock(&w->lock);
        while ((to = dt__arrived_take(w, DT__KIND_FD, comm, member[i], 0)) < 0 &&
               (gone = dt__fd_gone(w, member, n)) < 0 && (!c || dt__comm_ok(c)))
            if (pthread_cond_timedwait(&w->control->cond, &w->lock, &t) == ETIMEDOUT) break;
        pthread_mutex_unlock(&w->lock);
        if (to < 0 || dt__fd_send(to, fd, deadline) != 0) bad = member[i];
        dt__close(&to);
    }
    if (gone < 0 && bad < 0) return 0;
    if (gone < 0 && c && !dt__comm_ok(c)) return dt__comm_bad(c->status, "passing a descriptor: %.600s", c->text);
    if (gone >= 0)
        return dt__comm_bad(DT_COMM_ERR_PEER, "passing a descriptor: %s died or left", dt__rank_text(w, gone, who, sizeof who));
    return dt__comm_bad(DT_COMM_ERR_TIMEOUT, "passing a descriptor: %s did not ask for it within %g s",
                        dt__rank_text(w, bad, who, sizeof who), w->timeout);
}
/* Passed on in a tree of DT__TREE children: no rank needs a descriptor for each of the others. */
DT__INSIDE int dt__world_pass_fd(dt__world *w, uint64_t comm, const int *member, int n, int fd)
{
    char     who[160];
    int64_t  deadline = dt__comm_now() + dt__ns_of(w->timeout);
    dt_comm *c;
    int      me = 0;
    if (n < 1) return dt__comm_bad(DT_COMM_ERR_ARG, "passing a descriptor: %d ranks", n);
    if (n == 1) return fd;
    while (me < n - 1 && member[me] != w->rank) me++;
    pthread_mutex_lock(&w->lock); /* find the communicator: it fails when one of its ranks fails or dies */
    for (c = w->comms; c && c->id != comm;) c = c->next;
    pthread_mutex_unlock(&w->lock);
    if (me > 0) fd = dt__fd_fetch(w, c, comm, member, n, member[(me - 1) / DT__TREE], deadline);
    if (fd < 0 && me > 0 && fd != DT__FD_NO_FD) return dt__said.why;
    int status = dt__fd_give(w, c, comm, member, n, me * DT__TREE + 1, me * DT__TREE + 1 + DT__TREE, fd, deadline);
    if (status == 0 && fd < 0 && me > 0)
        status = dt__comm_bad(DT_COMM_ERR_MEMORY, "passing a descriptor: %s could not create it",
                              dt__rank_text(w, member[0], who, sizeof who));
    if (status && me > 0) dt__close(&fd);
    return status ? status : fd;
}

/* ---- agreements: which ranks are alive? (dt_comm_shrink)
   The thread of dt_comm_shrink enters by dt__world_agree and waits; the control thread does the rest, under w->lock.

   Each rank that takes part has a state: joined, accepted (whose proposal it accepted, and the set in it), decided. It
   sends its state up the tree every 200 ms until there is a decision. The root is the lowest living rank. Its orders:
     ASK      send me your states
     PROPOSE  when every asked rank has joined, is gone or is too late: the set of ranks that joined. Each rank accepts
     DECIDE   when all living ranks of the set have accepted it
   If the root dies, the next root begins with ASK. If some rank has decided, the new root decides the same. Otherwise, if
   some ranks have accepted proposals, it proposes the one of the highest previous root again.

   Why all ranks decide the same: a root decides a set S only when every living member of S has accepted S. A state names
   the root that its rank follows, and counts only at that root. A rank that follows root b has declared all ranks below b
   dead and accepts nothing from them any more. So a later root learns of S from every living member of S (there is at
   least one, or no rank is left to disagree), and must propose S again. This is Paxos with the ranks of the roots as
   ballot numbers and all living ranks as the quorum.

   This requires to know which ranks are alive. The end of a connection is a proof of death; so are a process of this
   machine that is stopped or gone, and a port where nobody listens. A silent rank is declared DT__LOST, is told so, and is
   refused from then on. But silence is no proof: when the network is split, each side might declare the other one lost.
   So the LOST ranks must be fewer than the reachable ones (if they are as many, the lowest rank of all must be reachable);
   otherwise no rank continues. */
static void dt__agree_order(dt__world *w, dt__agreement *e, int order);
static int  dt__bits(const uint8_t *bits, int n)
{
    int k = 0;
    for (int i = 0; i < n; i++) k += dt__bit(bits, i);
    return k;
}
DT__INSIDE size_t dt__agree_nbytes(const dt__world *w) { return ((size_t)dt__world_room(w) + 7) / 8; }
static void   dt__agree_free(dt__agreement *e)
{
    DT_COMM_FREE(e->asked);
    DT_COMM_FREE(e->heard_at);
    memset(e, 0, sizeof *e);
}
static bool dt__agree_busy(const dt__agreement *e, int64_t now)
{
    return e->comm && !e->decided && dt__seconds_of(now - e->begin) < 4 * e->timeout + 30;
}
static int64_t dt__agree_patience(const dt__agreement *e) /* ns of silence after which a rank is declared lost */
{
    double s = e->timeout / 4;
    return dt__ns_of(s < 1 ? 1 : s > 5 ? 5 : s);
}
static int dt__agree_root(const dt__world *w) /* the root that this rank follows */
{
    int r = 0;
    while (r < w->rank && w->control->gone[r]) r++;
    return r;
}
/* Finds or creates the agreement of this number; NULL: out of memory, or all entries are in use. */
static dt__agreement *dt__agree_of(dt__world *w, uint64_t comm, int round, double timeout, const uint8_t *asked)
{
    dt__agreement *e = NULL;
    size_t         nb = dt__agree_nbytes(w);
    for (int i = 0; i < DT__AGREEMENTS; i++) {
        dt__agreement *x = &w->control->agreement[i];
        if (x->comm == comm && x->round == round) return x;
        if (x->waiting) continue;
        if (!e || !x->comm || (e->comm && x->begin < e->begin)) e = x;
    }
    if (!e) return NULL;
    dt__agree_free(e);
    e->asked = (uint8_t *)dt__comm_zeroed(5, nb);
    if (!e->asked) return NULL;
    e->in = e->asked + nb;
    e->came = e->asked + 2 * nb;
    e->acked = e->asked + 3 * nb;
    e->late = e->asked + 4 * nb;
    memcpy(e->asked, asked, nb);
    e->comm = comm;
    e->round = round;
    if (dt__world_first(w) && dt__world_first(w)->id == comm && round >= w->control->rounds) w->control->rounds = round + 1;
    e->timeout = timeout;
    e->begin = dt__comm_now();
    e->accepted = -1;
    return e;
}
/* The number of the next agreement of c (NULL: freed), for a rank that has joined just now: one that is under way and waits for
   it, too, or the one after the last. */
static int32_t dt__agree_next(const dt__world *w, const dt_comm *c, int rank)
{
    const dt__control *ctl = w->control;
    int64_t            now = dt__comm_now();
    for (int i = 0; c && i < DT__AGREEMENTS; i++) {
        const dt__agreement *e = &ctl->agreement[i];
        if (e->comm != c->id || e->round != ctl->rounds - 1 || e->decided || e->proposed || !dt__bit(e->asked, rank)) continue;
        bool runs = e->waiting;
        for (int r = 0; e->heard_at && r < w->size; r++)
            runs = runs || (dt__bit(e->came, r) && r != w->rank && now - e->heard_at[r] < DT__NS_PER_S);
        if (runs) return e->round;
    }
    return ctl->rounds;
}
static void dt__agree_own(const dt__world *w, dt__agreement *e) /* at the root: its own state */
{
    dt__bit_set(e->came, w->rank);
    if (!e->any) e->first_built = e->built, e->nfirst_built = e->nbuilt;
    e->same = (!e->any || e->same) && e->built == e->first_built && e->nbuilt == e->nfirst_built;
    e->any = true;
}
/* In a world that others join, a rank that has joined during dt_comm_shrink of the others asks for more ranks than they do.
   Those count that all ask for. Its own state counts no more then, so the root asks again. */
static bool dt__agree_narrow(dt__world *w, dt__agreement *e, const uint8_t *asked)
{
    size_t nb = dt__agree_nbytes(w);
    bool   less = false;
    if (memcmp(e->asked, asked, nb) == 0) return true;
    if (w->room <= w->start) return false;
    if (e->proposed || e->decided) return true;
    for (size_t i = 0; i < nb; i++) {
        less = less || (e->asked[i] & ~asked[i]);
        e->asked[i] &= asked[i];
    }
    if (!less || !e->heard_at) return true;
    memset(e->came, 0, nb);
    e->any = e->same = false;
    if (e->joined) dt__agree_own(w, e);
    dt__agree_order(w, e, DT__AGREE_ASK);
    return true;
}
static dt__cagree dt__agree_head(const dt__world *w, const dt__agreement *e, int order)
{
    dt__cagree a;
    memset(&a, 0, sizeof a);
    a.comm = e->comm;
    a.built = e->built;
    a.nbuilt = e->nbuilt;
    a.timeout = e->timeout;
    a.round = e->round;
    a.rank = w->rank;
    a.root = dt__agree_root(w);
    a.accepted = e->accepted;
    a.joined = e->joined;
    a.decided = e->decided;
    a.all = e->all;
    a.order = (uint8_t)order;
    return a;
}
static dt__block *dt__agree_block(dt__world *w, const dt__agreement *e, int kind, int order)
{
    dt__cagree a = dt__agree_head(w, e, order);
    size_t     nb = dt__agree_nbytes(w);
    dt__block *b = dt__block_new(kind, w->rank, &a, sizeof a, e->asked, 2 * nb); /* asked and in */
    return b;
}
static void dt__agree_order(dt__world *w, dt__agreement *e, int order) /* the root sends an order to all other ranks */
{
    dt__block *b = dt__agree_block(w, e, DT__C_AGREE_ORDER, order);
    dt__control_flood(w, b, NULL);
    dt__block_unref(b);
    e->sent_at = dt__comm_now();
}
static void dt__agree_decide(dt__world *w, dt__agreement *e)
{
    e->decided = true;
    dt__agree_order(w, e, DT__AGREE_DECIDE);
    pthread_cond_broadcast(&w->control->cond);
}
/* Fills e->in with the living ranks that joined; with no rank if too many are DT__LOST (see above). */
static void dt__agree_members(dt__world *w, dt__agreement *e)
{
    uint8_t *gone = w->control->gone;
    int      here = 0, lost = 0, lowest = -1;
    memset(e->in, 0, dt__agree_nbytes(w));
    for (int r = 0; r < w->size; r++) {
        if (!dt__bit(e->asked, r)) continue;
        if (gone[r] == DT__LOST && dt__process_stopped(w, r)) gone[r] = DT__DIED;
        bool is_lost = gone[r] == DT__LOST;
        if (gone[r] && !is_lost) continue;
        if (lowest < 0) lowest = is_lost;
        if (is_lost) lost++;
        else here++; /* also a rank that is late */
        if (!gone[r] && dt__bit(e->came, r)) dt__bit_set(e->in, r);
    }
    if (lost > here || (lost == here && lowest > 0)) memset(e->in, 0, dt__agree_nbytes(w));
}
/* At the root: proposes or decides if it is time to. */
static void dt__agree_step(dt__world *w, dt__agreement *e)
{
    const uint8_t *gone = w->control->gone;
    if (e->decided) return;
    for (int r = 0; r < w->size && !e->proposed; r++)
        if (dt__bit(e->asked, r) && !gone[r] && !dt__bit(e->came, r) && !dt__bit(e->late, r)) return;
    if (!e->proposed) {
        if (e->accepted < 0) {
            dt__agree_members(w, e);
            e->all = e->any && e->same && e->first_built && dt__bits(e->in, w->size) == e->nfirst_built;
        }
        e->proposed = true;
        e->accepted = w->rank;
        dt__bit_set(e->acked, w->rank);
        dt__agree_order(w, e, DT__AGREE_PROPOSE);
    }
    for (int r = 0; r < w->size; r++)
        if (dt__bit(e->in, r) && !gone[r] && !dt__bit(e->acked, r)) return;
    if (dt__world_first(w) && dt__world_first(w)->id == e->comm) w->control->led = true;
    dt__agree_decide(w, e);
}
/* At the root: receives the state of a rank. in: the set that the rank accepted. */
static void dt__agree_receive(dt__world *w, dt__agreement *e, const dt__cagree *a, const uint8_t *in)
{
    size_t nb = dt__agree_nbytes(w);
    if (e->decided) {
        if (!a->decided && a->joined) dt__agree_order(w, e, DT__AGREE_DECIDE);
        return;
    }
    if (!e->heard_at) { /* from now on this rank is the root */
        e->heard_at = (int64_t *)DT_COMM_MALLOC((size_t)dt__world_room(w) * sizeof *e->heard_at);
        if (!e->heard_at) return; /* the state will be sent again */
        e->begin = dt__comm_now();
        for (int r = 0; r < dt__world_room(w); r++) e->heard_at[r] = e->begin;
        if (e->joined) dt__agree_own(w, e);
        dt__agree_order(w, e, DT__AGREE_ASK);
    }
    e->heard_at[a->rank] = dt__comm_now();
    if (a->decided) {
        memcpy(e->in, in, nb);
        e->all = a->all;
        dt__agree_decide(w, e);
        return;
    }
    if (a->root != w->rank) return; /* the rank still follows another root */
    if (a->joined && !dt__bit(e->came, a->rank) && dt__bit(e->asked, a->rank)) {
        dt__bit_set(e->came, a->rank);
        if (!e->any) e->first_built = a->built, e->nfirst_built = a->nbuilt;
        e->same = (!e->any || e->same) && a->built == e->first_built && a->nbuilt == e->nfirst_built;
        e->any = true;
    }
    if (!e->proposed && a->accepted > e->accepted) {
        memcpy(e->in, in, nb);
        e->all = a->all;
        e->accepted = a->accepted;
    }
    if (e->proposed && a->accepted == w->rank) dt__bit_set(e->acked, a->rank);
    dt__agree_step(w, e);
}
static void dt__agree_state(dt__world *w, dt__agreement *e) /* sends the state up; repeated, so it may get lost */
{
    dt__control *ctl = w->control;
    e->sent_at = dt__comm_now();
    if (dt__control_is_root(w)) {
        dt__cagree a = dt__agree_head(w, e, 0);
        dt__agree_receive(w, e, &a, e->in);
    } else if (ctl->parent) {
        dt__block *b = dt__agree_block(w, e, DT__C_AGREE_STATE, 0);
        dt__conn_queue(ctl->parent, b);
        dt__block_unref(b);
    }
}
static void dt__agree_resend(dt__world *w) /* sends all states to a new parent */
{
    for (int i = 0; i < DT__AGREEMENTS; i++)
        if (w->control->agreement[i].waiting && !w->control->agreement[i].decided)
            dt__agree_state(w, &w->control->agreement[i]);
}
static void dt__agree_obey(dt__world *w, dt__agreement *e, const dt__cagree *a, const uint8_t *in)
{
    size_t nb = dt__agree_nbytes(w);
    if (!e->decided && a->order == DT__AGREE_DECIDE) {
        memcpy(e->in, in, nb);
        e->all = a->all;
        e->decided = true;
        pthread_cond_broadcast(&w->control->cond);
    }
    if (!e->decided && a->order == DT__AGREE_PROPOSE && e->joined && a->root == dt__agree_root(w)) {
        memcpy(e->in, in, nb);
        e->all = a->all;
        e->accepted = a->root;
    }
    if (!e->waiting) pthread_cond_broadcast(&w->control->cond); /* dt__world_asked */
    if (a->order != DT__AGREE_DECIDE) dt__agree_state(w, e);
}
static bool dt__agree_frame(dt__world *w, dt__conn *k, const uint8_t *p, size_t n) /* false: the frame is invalid */
{
    dt__control *ctl = w->control;
    dt__cagree   a;
    size_t       nb = dt__agree_nbytes(w);
    if (n != sizeof a + 2 * nb) return false;
    memcpy(&a, p, sizeof a);
    const uint8_t *asked = p + sizeof a, *in = asked + nb;
    if (a.rank < 0 || a.rank >= w->size || a.root < 0 || a.root >= w->size || a.accepted < -1 ||
        a.accepted >= w->size || a.round < 0 || !a.comm || !(a.timeout > 0 && a.timeout < 1e8) ||
        a.order > DT__AGREE_DECIDE)
        return false;
    if (k->head.kind == DT__C_AGREE_STATE && !dt__control_is_root(w)) {
        if (!ctl->parent) return true; /* the state will be sent again */
    } else {
        dt__agreement *e = dt__agree_of(w, a.comm, a.round, a.timeout, asked);
        if (!e) return true;
        if (k->head.kind == DT__C_AGREE_STATE) {
            dt__agree_narrow(w, e, asked);
            dt__agree_receive(w, e, &a, in);
            return true;
        }
        if (k != ctl->parent) return true; /* an order of a former parent */
        dt__agree_obey(w, e, &a, in);
    }
    dt__block *b = dt__block_new((int)k->head.kind, a.rank, p, n, NULL, 0);
    if (k->head.kind == DT__C_AGREE_STATE) dt__conn_queue(ctl->parent, b);
    else dt__control_flood(w, b, k);
    dt__block_unref(b);
    return true;
}
/* Declares a silent rank dead or lost. The ranks below it are cut off, so they are told directly. */
static void dt__control_expel(dt__world *w, int rank, double seconds)
{
    char       text[400], who[160];
    dt__cdeath d;
    bool       still = dt__process_stopped(w, rank);
    snprintf(text, sizeof text, "%s has not answered for %.1f s: it is %s; the other ranks continue without it",
             dt__rank_text(w, rank, who, sizeof who), seconds, still ? "stopped" : "stopped or unreachable");
    d.rank = rank;
    d.how = still ? DT__DIED : DT__LOST;
    dt__control_gone(w, rank, d.how, text, NULL);
    dt__block *b = dt__block_new(DT__C_DEATH, rank, &d, sizeof d, text, strlen(text));
    for (int k = 1; b && k <= DT__TREE; k++) {
        int r = rank * DT__TREE + k;
        if (r < w->size && r != w->rank && !w->control->gone[r]) dt__control_dial(w, r, DT__KIND_NEWS, b);
    }
    dt__block_unref(b);
}
/* The root looks for ranks that do not answer. Of the silent ranks on one path only the topmost is declared lost. */
static void dt__agree_silent(dt__world *w, dt__agreement *e, int64_t now)
{
    dt__control *ctl = w->control;
    int64_t      patience = dt__agree_patience(e);
    for (int r = 0; r < w->size; r++) {
        if (!dt__bit(e->asked, r) || ctl->gone[r]) continue;
        int64_t quiet = r == w->rank ? 0 : now - e->heard_at[r];
        int     top = r;
        if (quiet > 300 * DT__NS_PER_MS && quiet < patience) { /* probe: does anybody listen there? */
            bool asked = false;
            for (dt__conn *k = ctl->conns; k; k = k->next) asked = asked || (k->probe && k->peer == r);
            dt__conn *k = asked ? NULL : dt__control_dial(w, r, DT__KIND_NEWS, NULL);
            if (k) k->probe = true;
            else if (!asked && errno == ECONNREFUSED) dt__control_unreached(w, r, true);
        }
        if (quiet < patience) {
            if (dt__seconds_of(now - e->begin) > e->timeout && !dt__bit(e->came, r)) dt__bit_set(e->late, r);
            continue;
        }
        for (int up = r; up > 0;) {
            up = (up - 1) / DT__TREE;
            if (up != w->rank && !ctl->gone[up] && now - e->heard_at[up] >= patience) top = up;
        }
        for (int i = 0; i < w->size; i++)
            if (i != top && now - e->heard_at[i] >= patience) e->heard_at[i] = now; /* perhaps only cut off: wait again */
        dt__control_expel(w, top, dt__seconds_of(patience));
        break;
    }
}
static void dt__agree_timers(dt__world *w, int64_t now)
{
    dt__control *ctl = w->control;
    int64_t      patience = 0;
    for (int i = 0; i < DT__AGREEMENTS; i++) {
        dt__agreement *e = &ctl->agreement[i];
        if (e->decided) { /* the entry stays for ranks that ask again: without 8 bytes for each rank of the room */
            DT_COMM_FREE(e->heard_at);
            e->heard_at = NULL;
        }
        if (!dt__agree_busy(e, now)) continue;
        if (!patience || dt__agree_patience(e) < patience) patience = dt__agree_patience(e);
        if (dt__control_is_root(w)) {
            if (!e->heard_at) dt__agree_state(w, e);
            if (e->heard_at) dt__agree_silent(w, e, now);
            if (e->heard_at) dt__agree_step(w, e);
            if (e->heard_at && !e->decided && now - e->sent_at > DT__AGREE_REPEAT)
                dt__agree_order(w, e, e->proposed ? DT__AGREE_PROPOSE : DT__AGREE_ASK);
        } else if (e->waiting && now - e->sent_at > DT__AGREE_REPEAT) dt__agree_state(w, e);
    }
    if (patience && !ctl->parent && ctl->heal_since && now - ctl->heal_heard > patience) { /* nor may the new one be silent */
        int r = ctl->heal_rank;
        ctl->heal_since = 0;
        if (ctl->healing) dt__conn_break(ctl->healing), ctl->healing = NULL;
        dt__control_expel(w, r, dt__seconds_of(patience));
    }
    if (!patience || !ctl->parent) ctl->hop_since = 0;
    else if (!ctl->hop_since) { /* during an agreement the parent must answer pings */
        ctl->hop_since = now;
        dt__conn_send(ctl->parent, DT__C_HOP_PING, w->rank, NULL, 0);
    } else if (now - ctl->hop_since > patience) {
        ctl->hop_since = 0;
        dt__control_expel(w, ctl->parent->peer, dt__seconds_of(patience));
    }
}
static bool dt__control_rest(dt__world *w, int64_t until) /* waits for cond; the lock is held. false: the time is over */
{
    struct timespec t = dt__timespec_of(until);
    if (!w->sim) return pthread_cond_timedwait(&w->control->cond, &w->lock, &t) != ETIMEDOUT;
    if (dt__comm_now() >= until) return false;
    pthread_mutex_unlock(&w->lock);
    w->sim_ops->wait(w, until);
    pthread_mutex_lock(&w->lock);
    return true;
}
DT__INSIDE int dt__world_asked(dt__world *w, uint64_t comm, int round, double seconds)
{
    dt__control *ctl = w->control;
    int64_t      until = dt__comm_now() + dt__ns_of(seconds);
    int          got = 0;
    pthread_mutex_lock(&w->lock);
    for (bool over = false;; over = !dt__control_rest(w, until)) {
        for (int i = 0; i < DT__AGREEMENTS && !got; i++) {
            const dt__agreement *e = &ctl->agreement[i];
            got = e->comm == comm && e->round >= round && !e->decided && !e->waiting;
        }
        if (ctl->expelled || ctl->ngone + 1 >= w->size) got = -1;
        if (got || over) break; /* before the wait: nobody may have a reason to wake this rank */
    }
    pthread_mutex_unlock(&w->lock);
    return got;
}
DT__INSIDE int dt__world_agree(dt__world *w, uint64_t comm, int round, double timeout, uint8_t *set, uint64_t built,
                           int nbuilt, bool *all)
{
    dt__control *ctl = w->control;
    int64_t      deadline = dt__comm_now() + dt__ns_of(timeout * 3) + 10 * DT__NS_PER_S;
    size_t       nb = dt__agree_nbytes(w);
    int          status = 0;
    if (!ctl) return dt__comm_bad(DT_COMM_ERR_STATE, "the world has only this rank");
    pthread_mutex_lock(&w->lock);
    dt__agreement *e = dt__agree_of(w, comm, round, timeout, set);
    if (!e) status = dt__comm_bad(DT_COMM_ERR_MEMORY, "agreement: out of memory");
    else if (!dt__agree_narrow(w, e, set))
        status = dt__comm_bad(DT_COMM_ERR_MISMATCH,
                              "rank %d calls agreement %d with another set of ranks than the other ranks do", w->rank,
                              round);
    else if (!e->decided) {
        e->waiting = e->joined = true;
        e->built = built;
        e->nbuilt = nbuilt;
        if (e->heard_at) dt__agree_own(w, e); /* this rank is the root, and other ranks joined first */
        dt__agree_state(w, e);
    }
    if (!status) dt__control_wake(w);
    while (!status && !e->decided && !ctl->expelled)
        if (!dt__control_rest(w, deadline)) break;
    if (e) e->waiting = false;
    if (!status && ctl->expelled) status = dt__comm_bad(DT_COMM_ERR_PEER, "%s", ctl->first_death);
    else if (!status && !e->decided)
        status = dt__comm_bad(DT_COMM_ERR_TIMEOUT, "the living ranks did not agree within %.0f s",
                              timeout * 3 + 10);
    if (!status) memcpy(set, e->in, nb), *all = e->all;
    pthread_mutex_unlock(&w->lock);
    return status;
}

/* ---- frames of the tree */
/* Handles the frame in k->head and k->body. false: the frame is invalid. */
DT__INSIDE bool dt__control_frame(dt__world *w, dt__conn *k)
{
    dt__control   *ctl = w->control;
    const uint8_t *p = k->body;
    size_t         n = k->head.nbytes;
    char           text[DT__CTEXT + 1];
    dt__block     *b;
    if (k->kind == DT__KIND_JOIN) return dt__join_member(w, k);
    if (k->kind == DT__KIND_REGISTER) {
        if (k == ctl->above) return dt__register_above(w, k), true;
        if (k->head.kind == DT__C_MEMBER) return dt__register_member(w, k);
        if (k->head.kind == DT__C_UNREGISTER) return dt__register_left(w, k);
        k->end_expected = k->head.kind == DT__C_BYE && ctl->join == DT__JOIN_COMPLETE;
        return k->end_expected;
    }
    switch (k->head.kind) {
    case DT__C_SYNC:
        if (k->kind != DT__KIND_TREE || n != 0) return false;
        if (k->state == DT__CONN_OPEN) {
            k->state = DT__CONN_READY;
            dt__control_sync(w, k);
        }
        return true;
    case DT__C_ABORT: {
        dt__cabort a;
        if (n < sizeof a || n > sizeof a + DT__CTEXT) return false;
        memcpy(&a, p, sizeof a);
        if (a.status >= 0 || a.status < -1000) return false;
        snprintf(text, sizeof text, "%.*s", (int)(n - sizeof a), (const char *)p + sizeof a);
        dt__control_abort(w, a.comm, a.status, a.rank, text, k);
        return true;
    }
    case DT__C_JOIN: return dt__join_heard(w, k, p, n);
    case DT__C_PART: {
        dt__cpart a;
        if (n < sizeof a || n > sizeof a + DT__CTEXT || k->kind != DT__KIND_TREE) return false;
        memcpy(&a, p, sizeof a);
        if (a.rank < 0 || (a.how != DT__DIED && a.how != DT__LEFT && a.how != DT__LOST)) return false;
        snprintf(text, sizeof text, "%.*s", (int)(n - sizeof a), (const char *)p + sizeof a);
        dt__control_part(w, &a, text, k);
        return true;
    }
    default: break;
    }
    if (k->head.kind != DT__C_DEATH && (k->kind != DT__KIND_TREE || k->state != DT__CONN_READY)) return false;
    switch (k->head.kind) {
    case DT__C_DEATH: { /* also on DT__KIND_NEWS connections, to ranks that a silent rank cuts off */
        dt__cdeath d;
        if (n < sizeof d || n > sizeof d + DT__CTEXT) return false;
        memcpy(&d, p, sizeof d);
        if (d.rank < 0 || d.rank >= w->size || (d.how != DT__DIED && d.how != DT__LEFT && d.how != DT__LOST))
            return false;
        snprintf(text, sizeof text, "%.*s", (int)(n - sizeof d), (const char *)p + sizeof d);
        dt__control_gone(w, d.rank, d.how, text, k);
        return true;
    }
    case DT__C_MEET_UP:
    case DT__C_MEET_DOWN:
    case DT__C_MEET_FAIL: {
        dt__cmeet m;
        if (n < sizeof m || (n > sizeof m && k->head.kind != DT__C_MEET_FAIL)) return false;
        memcpy(&m, p, sizeof m);
        if (k->head.kind == DT__C_MEET_FAIL) {
            snprintf(text, sizeof text, "%.*s",
                     (int)(n - sizeof m < (size_t)DT__CTEXT ? n - sizeof m : (size_t)DT__CTEXT),
                     (const char *)p + sizeof m);
            dt__meet_fail(w, m.seq, text, k);
        } else if (k->head.kind == DT__C_MEET_UP && w->rank == 0) dt__meet_take(w, &m);
        else if (k->head.kind == DT__C_MEET_UP) {
            if (ctl->parent) dt__conn_send(ctl->parent, DT__C_MEET_UP, k->head.rank, &m, sizeof m);
        } else {
            b = dt__block_new(DT__C_MEET_DOWN, k->head.rank, &m, sizeof m, NULL, 0);
            dt__control_flood(w, b, k);
            dt__meet_down(w, &m);
            dt__block_unref(b);
        }
        return true;
    }
    case DT__C_ASK: {
        dt__cask a;
        int32_t *member;
        if (n < sizeof a) return false;
        memcpy(&a, p, sizeof a);
        if (a.n < 0 || (size_t)a.n > DT__CFRAME_MAX / sizeof(int32_t) ||
            n != sizeof a + (size_t)a.n * sizeof(int32_t) || a.asker < 0 || a.asker >= w->size)
            return false;
        member = (int32_t *)DT_COMM_MALLOC((size_t)a.n * sizeof *member + 1);
        if (!member) return true;
        memcpy(member, p + sizeof a, (size_t)a.n * sizeof *member);
        bool ok = true;
        for (int i = 0; i < a.n; i++) ok = ok && member[i] >= 0 && member[i] < w->size;
        if (ok) dt__inquiry_begin(w, &a, member, false);
        DT_COMM_FREE(member);
        return ok;
    }
    case DT__C_WATCH: {
        dt__frame f;
        if (n != sizeof f) return false;
        memcpy(&f, p, sizeof f);
        if (f.magic != (uint32_t)DT__FRAME_MAGIC || f.version != (uint32_t)DT__FRAME_VERSION) return false;
        if (f.epoch == w->epoch) dt__watch_take(w, &f, k);
        return true;
    }
    case DT__C_HOP_PING: dt__conn_send(k, DT__C_HOP_PONG, w->rank, NULL, 0); return true;
    case DT__C_AGREE_STATE:
    case DT__C_AGREE_ORDER: return dt__agree_frame(w, k, p, n);
    case DT__C_HOP_PONG:
        if (k == ctl->parent) ctl->hop_since = 0;
        for (int i = 0; i < DT__INQUIRIES; i++) {
            dt__inquiry *q = &ctl->inquiry[i];
            if (q->state != DT__INQUIRY_SENT) continue;
            if (q->ask.asker == w->rank) q->state = DT__INQUIRY_WAIT;
            else dt__inquiry_free(q);
        }
        return true;
    case DT__C_PING: {
        dt__cping  q;
        dt__cstate s;
        if (n != sizeof q) return false;
        memcpy(&q, p, sizeof q);
        b = dt__block_new(DT__C_PING, k->head.rank, &q, sizeof q, NULL, 0);
        dt__control_flood(w, b, k);
        dt__block_unref(b);
        memset(&s, 0, sizeof s);
        s.id = q.id;
        s.comm = q.comm;
        dt__state_of(w, q.comm, &s);
        dt__conn_send(k, DT__C_PONG, w->rank, &s, sizeof s);
        return true;
    }
    case DT__C_PONG:
    case DT__C_NOTE: {
        dt__cstate s;
        if (n != sizeof s) return false;
        memcpy(&s, p, sizeof s);
        if (s.rank < 0 || s.rank >= w->size) return false;
        s.has = s.has != 0;
        if (k->head.kind == DT__C_NOTE) k->note = s;
        else if (ctl->parent) dt__conn_send(ctl->parent, DT__C_PONG, s.rank, &s, sizeof s);
        else
            for (int i = 0; i < DT__INQUIRIES; i++)
                if (ctl->inquiry[i].state == DT__INQUIRY_COLLECT && ctl->inquiry[i].id == s.id)
                    ctl->inquiry[i].answer[s.rank] = s;
        return true;
    }
    case DT__C_LEAVE_UP:
        if (n != sizeof k->leave) return false;
        memcpy(&k->leave, p, sizeof k->leave);
        return k->leave > 0 && k->leave <= w->size;
    case DT__C_LEAVE_DOWN:
        if (k != ctl->parent) return false;
        if (ctl->leave == DT__LEAVE_ASKED) dt__control_release(w, k);
        k->end_expected = true;
        return true;
    case DT__C_BYE:
        k->end_expected = true;
        snprintf(text, sizeof text, "rank %d left", k->peer);
        dt__control_gone(w, k->peer, DT__LEFT, text, k);
        return true;
    default: return false;
    }
}
static void dt__conn_read(dt__world *w, dt__conn *k)
{
    for (int i = 0; i < 256 && k->state != DT__CONN_BROKEN; i++) {
        int got = 1;
        if (k->head_done < sizeof k->head) got = dt__recv_some(k->fd, &k->head, sizeof k->head, &k->head_done);
        if (got == 1) {
            if (k->head.magic != (uint32_t)DT__CFRAME_MAGIC || k->head.nbytes > DT__CFRAME_MAX) {
                dt__conn_lost(w, k, "it sent a broken frame");
                return;
            }
            if (k->head.nbytes > k->body_cap) {
                uint8_t *body = (uint8_t *)DT_COMM_REALLOC(k->body, k->head.nbytes);
                if (!body) {
                    if (k == w->control->above) dt__register_fail(w, DT_COMM_ERR_MEMORY, "out of memory for the table of ranks");
                    dt__conn_lost(w, k, "no memory for its frame");
                    return;
                }
                k->body = body;
                k->body_cap = k->head.nbytes;
            }
            got = dt__recv_some(k->fd, k->body, k->head.nbytes, &k->body_done);
        }
        if (got == 0) return;
        if (got < 0) {
            dt__conn_lost(w, k, errno ? strerror(errno) : "its connection ended");
            return;
        }
        k->head_done = k->body_done = 0;
        if (!dt__control_frame(w, k)) dt__conn_lost(w, k, "it sent a broken frame");
    }
}

/* ---- the thread */
static void dt__control_note(dt__world *w, int64_t now) /* tells the neighbours what this rank does, every 250 ms */
{
    dt__control *ctl = w->control;
    dt_comm     *latest = NULL;
    dt__cstate   s;
    if (!w->comms || now < ctl->note_at) return;
    ctl->note_at = now + DT__NOTE_EVERY;
    for (dt_comm *c = w->comms; c; c = c->next)
        if (!latest || __atomic_load_n(&c->since, __ATOMIC_RELAXED) > __atomic_load_n(&latest->since, __ATOMIC_RELAXED))
            latest = c;
    memset(&s, 0, sizeof s);
    s.comm = latest->id;
    if (ctl->note.comm != s.comm) ctl->note_doing = 0;
    dt__state_of(w, s.comm, &s);
    if (s.doing) ctl->note_doing = s.doing;
    s.age = 0;
    ctl->note = s;
    for (dt__conn *k = ctl->conns; k; k = k->next) /* not to a neighbour that has not read the last frames */
        if (dt__conn_in_tree(k) && !k->out && memcmp(&s, &k->note_sent, sizeof s) != 0) {
            dt__conn_send(k, DT__C_NOTE, w->rank, &s, sizeof s);
            k->note_sent = s;
        }
}
static void dt__control_leave(dt__world *w, int64_t now)
{
    dt__control *ctl = w->control;
    if (ctl->leave == DT__LEAVE_NO) return;
    if (ctl->leave < DT__LEAVE_RELEASED) {
        bool    all = true;
        int32_t total = 1;
        for (dt__conn *k = ctl->conns; k; k = k->next) {
            if (!dt__conn_in_tree(k) || k == ctl->parent || k->end_expected) continue;
            all = all && k->leave > 0;
            total += k->leave;
        }
        if (all && ctl->parent && total != ctl->leave_sent) {
            dt__conn_send(ctl->parent, DT__C_LEAVE_UP, w->rank, &total, sizeof total);
            ctl->leave_sent = total;
        }
        if (all && dt__control_is_root(w) && total + ctl->ngone >= w->size) {
            dt__control_release(w, NULL);
        } else if (now >= ctl->leave_deadline || ctl->expelled) {
            ctl->leave = DT__LEAVE_GOODBYE;
            ctl->release_deadline = now + DT__RELEASE_TIME;
        }
    }
    if (ctl->leave < DT__LEAVE_RELEASED) return;
    bool empty = true;
    for (dt__conn *k = ctl->conns; k; k = k->next) {
        if (k->state == DT__CONN_HANDSHAKE && ctl->join == DT__JOIN_FAILED) empty = false;
        if (!dt__conn_live(k)) continue;
        /* in every iteration: a neighbour may have connected just now */
        if (ctl->leave == DT__LEAVE_GOODBYE && k->kind == DT__KIND_TREE && k->goodbye == DT__BYE_NOT_YET) {
            dt__conn_send(k, DT__C_BYE, w->rank, NULL, 0);
            k->goodbye = DT__BYE_SENT;
        }
        dt__conn_flush(k);
        empty = empty && (!k->out || k->state == DT__CONN_BROKEN);
        bool other = k->kind == DT__KIND_TREE || k->kind == DT__KIND_REGISTER;
        if (!k->out && ctl->leave >= DT__LEAVE_ALONE && k->goodbye != DT__BYE_SHUT && other) {
            /* closing with unread bytes would send a reset and destroy the goodbye: read until the other side has closed */
            shutdown(k->fd, SHUT_WR);
            k->end_expected = true;
            k->goodbye = DT__BYE_SHUT;
        }
        if (ctl->leave >= DT__LEAVE_ALONE && other && k->state != DT__CONN_BROKEN) empty = false;
    }
    if (empty || now >= ctl->release_deadline) ctl->stop = true;
}
static bool dt__conn_dated(const dt__conn *k) /* it must say something before its deadline */
{
    return k->state == DT__CONN_HANDSHAKE || (k->state == DT__CONN_OPEN && k->kind == DT__KIND_JOIN);
}
DT__INSIDE int64_t dt__control_next(const dt__world *w, int64_t now)
{
    const dt__control *ctl = w->control;
    int64_t            next = now + 10 * DT__NS_PER_S;
#define DT__SOONER(t) next = (t) < next ? (t) : next
    for (const dt__conn *k = ctl->conns; k; k = k->next)
        if (dt__conn_dated(k)) DT__SOONER(k->deadline);
    if (ctl->join == DT__JOIN_OPEN) {
        DT__SOONER(w->join_deadline);
        if (w->rank == 0) DT__SOONER(ctl->missing_at);
    }
    if (ctl->accept_after > now) DT__SOONER(ctl->accept_after);
    if (ctl->heal_since && ctl->heal_after > now && dt__heal_needed(w)) DT__SOONER(ctl->heal_after);
    if (ctl->root_on) DT__SOONER(ctl->root_deadline);
    if (ctl->orphan_at && w->tolerant) DT__SOONER(ctl->orphan_at);
    for (int i = 0; i < DT__INQUIRIES; i++) {
        const dt__inquiry *q = &ctl->inquiry[i];
        switch (q->state) {
        case DT__INQUIRY_SENT: DT__SOONER(q->begin + DT__INQUIRY_HOP); break;
        case DT__INQUIRY_WAIT: DT__SOONER(q->begin + DT__INQUIRY_VERDICT); break;
        case DT__INQUIRY_COLLECT: DT__SOONER(q->begin + DT__INQUIRY_ANSWERS); break;
        }
    }
    if (w->comms) DT__SOONER(ctl->note_at);
    for (int i = 0; i < DT__AGREEMENTS; i++)
        if (dt__agree_busy(&ctl->agreement[i], now)) DT__SOONER(now + DT__AGREE_LOOK);
    if (ctl->leave != DT__LEAVE_NO) DT__SOONER(ctl->leave >= DT__LEAVE_RELEASED ? ctl->release_deadline : ctl->leave_deadline);
    if (ctl->join == DT__JOIN_FAILED && next > now + 10 * DT__NS_PER_MS) next = now + 10 * DT__NS_PER_MS;
#undef DT__SOONER
    return next;
}
DT__INSIDE void dt__control_reap(dt__world *w)
{
    dt__control *ctl = w->control;
    for (dt__conn **p = &ctl->conns; *p;) {
        dt__conn *k = *p;
        if (k->state != DT__CONN_BROKEN) {
            p = &k->next;
            continue;
        }
        *p = k->next;
        if (k == ctl->parent) ctl->parent = NULL;
        if (k == ctl->above) ctl->above = NULL;
        if (k == ctl->healing) {
            ctl->healing = NULL;
            if (k->shake.state > DT__SHAKE_AT_S) ctl->heal_heard = dt__comm_now();
            if (!ctl->expelled) dt__heal_failed(w, k->peer, k->refused);
            p = &ctl->conns; /* from the start: the flood may have broken other connections */
        }
        if (k->probe && k->refused) {
            dt__control_unreached(w, k->peer, true);
            p = &ctl->conns;
        }
        if (k->kind == DT__KIND_REGISTER && k->broke_in == DT__CONN_HANDSHAKE && k->peer >= 0 &&
            ctl->registered[k->peer] == DT__REG_ADMITTED)
            ctl->registered[k->peer] = DT__REG_NO;
        dt__conn_free(k);
    }
    if (dt__heal_needed(w)) dt__control_heal(w);
}
static int dt__control_polls(dt__world *w, struct pollfd **polls, int *cap, int64_t now)
{
    dt__control *ctl = w->control;
    int          n = 4;
    for (dt__conn *k = ctl->conns; k; k = k->next) n++;
    if (n > *cap) {
        struct pollfd *p = (struct pollfd *)DT_COMM_REALLOC(*polls, (size_t)(2 * n) * sizeof *p);
        if (p) *polls = p, *cap = 2 * n;
    }
    struct pollfd *p = *polls;
    /* ranks below this one wait in the listen queue until this rank can pass on their frames */
    bool open = ctl->leave < DT__LEAVE_RELEASED && ctl->join != DT__JOIN_FAILED && now >= ctl->accept_after;
    bool tree = w->rank == 0 || w->joined, relay = ctl->join == DT__JOIN_OPEN && dt__relays(w->size);
    if (*cap < 4) return 0;
    p[0].fd = ctl->wake;
    p[1].fd = open && (tree || relay) ? w->listen_fd : -1;
    p[2].fd = open && tree ? w->unix_fd : -1;
    p[3].fd = open && tree ? w->ticket_fd : -1;
    for (int i = 0; i < 4; i++) p[i].events = POLLIN, p[i].revents = 0;
    n = 4;
    for (dt__conn *k = ctl->conns; k; k = k->next) {
        k->slot = -1;
        if (n >= *cap) continue;
        k->slot = n;
        p[n].fd = k->fd;
        p[n].events = (short)(dt__conn_held(w, k)                ? 0
                              : k->state == DT__CONN_HANDSHAKE ? dt__shake_events(&k->shake)
                                                               : POLLIN | (k->out ? POLLOUT : 0));
        p[n++].revents = 0;
    }
    return n;
}
DT__INSIDE void dt__control_timers(dt__world *w, int64_t now)
{
    for (dt__conn *k = w->control->conns; k; k = k->next)
        if (dt__conn_dated(k) && now >= k->deadline) {
            if (k->shake.server) dt__control_rejected(w, k->fd, "it took too long");
            dt__conn_break(k);
        }
    if (dt__heal_needed(w)) dt__control_heal(w);
    dt__register_timers(w, now);
    dt__meet_timers(w, now);
    dt__inquiry_timers(w, now);
    dt__agree_timers(w, now);
    dt__orphan_timers(w, now);
    dt__arrived_timers(w, now);
    dt__control_note(w, now);
    dt__control_leave(w, now);
}
static void *dt__control_main(void *arg)
{
    dt__world     *w = (dt__world *)arg;
    dt__control   *ctl = w->control;
    struct pollfd *p = NULL;
    int            cap = 0;
    uint64_t       count;
    prctl(PR_SET_NAME, "dt control");
    pthread_mutex_lock(&w->lock);
    while (!ctl->stop) {
        int64_t now = dt__comm_now();
        for (dt__conn *k = ctl->conns; k; k = k->next) {
            if (k->out && dt__conn_live(k)) dt__conn_flush(k);
            if (k->state == DT__CONN_HANDSHAKE && k->shake.state == DT__SHAKE_AT_DECISION) dt__conn_shake(w, k);
        }
        dt__control_reap(w);
        int n = dt__control_polls(w, &p, &cap, now);
        int64_t next = dt__control_next(w, now);
        for (dt__conn *k = ctl->conns; k; k = k->next)
            if (k->state == DT__CONN_BROKEN) next = now;
        dt__line *lines = ctl->lines;
        ctl->lines = NULL;
        pthread_mutex_unlock(&w->lock);
        dt__lines_log(lines);
        int ready = poll(p, (nfds_t)n, n ? dt__poll_ms(next) : 10);
        pthread_mutex_lock(&w->lock);
        now = dt__comm_now();
        if (ready > 0) {
            if (p[0].revents && read(ctl->wake, &count, sizeof count) < 0) count = 0;
            for (dt__conn *k = ctl->conns; k; k = k->next) {
                if (k->slot < 0 || k->state == DT__CONN_BROKEN || !p[k->slot].revents) continue;
                if (dt__conn_held(w, k)) dt__conn_break(k); /* the peer has closed it */
                else if (k->state == DT__CONN_HANDSHAKE) dt__conn_shake(w, k);
                else if (p[k->slot].revents & ~POLLOUT) dt__conn_read(w, k);
            }
            if (p[1].revents) dt__control_accept(w, w->listen_fd, false);
            if (p[2].revents) dt__control_accept(w, w->unix_fd, true);
            if (p[3].revents && w->ticket_fd >= 0) dt__control_ticket(w);
        }
        dt__control_timers(w, now);
        ctl->turns++;
        if (ctl->settling) pthread_cond_broadcast(&ctl->cond);
    }
    pthread_mutex_unlock(&w->lock);
    DT_COMM_FREE(p);
    return NULL;
}
DT__INSIDE void dt__control_free(dt__world *w)
{
    dt__control *ctl = w->control;
    while (ctl->conns) {
        dt__conn *k = ctl->conns;
        ctl->conns = k->next;
        dt__conn_free(k);
    }
    while (ctl->arrived) {
        dt__arrived *a = ctl->arrived;
        ctl->arrived = a->next;
        close(a->fd);
        DT_COMM_FREE(a);
    }
    dt__lines_log(ctl->lines);
    for (int i = 0; i < DT__ABORTS; i++) dt__block_unref(ctl->aborts[i]);
    for (int i = 0; i < DT__PARTS_KEPT; i++) dt__block_unref(ctl->parts[i]);
    for (int i = 0; i < DT__INQUIRIES; i++) dt__inquiry_free(&ctl->inquiry[i]);
    for (int i = 0; i < DT__AGREEMENTS; i++) dt__agree_free(&ctl->agreement[i]);
    dt__close(&ctl->wake);
    dt__close(&w->ticket_fd);
    pthread_cond_destroy(&ctl->cond);
    DT_COMM_FREE(ctl->gone);
    DT_COMM_FREE(ctl->registered);
    DT_COMM_FREE(ctl->root_came);
    DT_COMM_FREE(ctl->orphan);
    DT_COMM_FREE(ctl->linked);
    DT_COMM_FREE(ctl);
    w->control = NULL;
}
DT__INSIDE int dt__control_new(dt__world *w)
{
    dt__control       *ctl = (dt__control *)DT_COMM_MALLOC(sizeof *ctl);
    pthread_condattr_t attr;
    errno = ENOMEM;
    if (!ctl) return -1;
    memset(ctl, 0, sizeof *ctl);
    w->control = ctl;
    if (!dt__comm_random(&ctl->salt, sizeof ctl->salt)) ctl->salt = (uint64_t)dt__comm_now();
    ctl->draw = ctl->salt;
    ctl->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int e = ctl->wake < 0 ? errno : ENOMEM;
    ctl->gone = (uint8_t *)DT_COMM_MALLOC((size_t)dt__world_room(w));
    ctl->registered = (uint8_t *)DT_COMM_MALLOC((size_t)dt__world_room(w));
    ctl->root_came = (uint8_t *)DT_COMM_MALLOC((size_t)dt__world_room(w));
    ctl->orphan = (int64_t *)dt__comm_zeroed((size_t)dt__world_room(w), sizeof *ctl->orphan);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&ctl->cond, &attr);
    pthread_condattr_destroy(&attr);
    if (ctl->wake < 0 || !ctl->gone || !ctl->registered || !ctl->root_came || !ctl->orphan) {
        dt__control_free(w);
        errno = e;
        return -1;
    }
    memset(ctl->gone, DT__ABSENT, (size_t)dt__world_room(w));
    memset(ctl->gone, 0, (size_t)w->size);
    memset(ctl->registered, 0, (size_t)dt__world_room(w));
    ctl->registered[0] = 1;
    ctl->nregistered = 1;
    ctl->join = w->rank == 0 ? DT__JOIN_OPEN : DT__JOIN_COMPLETE; /* dt__control_start: OPEN */
    ctl->missing_at = dt__comm_now() + DT__NS_PER_S;
    return 0;
}
static int dt__control_start(dt__world *w)
{
    sigset_t all, old;
    int      e;
    if (dt__control_new(w) < 0) return -1;
    w->control->join = DT__JOIN_OPEN;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    w->control->started = true;
    e = pthread_create(&w->control->thread, NULL, dt__control_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e == 0) return 0;
    dt__control_free(w);
    errno = e;
    return -1;
}
static int dt__control_adopt(dt__world *w, int fd, int peer)
{
    pthread_mutex_lock(&w->lock);
    dt__conn *k = dt__conn_new(w, fd, DT__KIND_TREE, peer);
    if (k) {
        k->state = DT__CONN_READY;
        w->control->parent = k;
        w->joined = true;
        dt__conn_send(k, DT__C_SYNC, w->rank, NULL, 0);
        if (w->rank < w->start) dt__control_sync(w, k); /* a rank that joins later knows no more than rank 0 told it */
    }
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
    if (k) return 0;
    close(fd);
    return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory");
}
static int dt__control_register(dt__world *w, int fd, int peer)
{
    pthread_mutex_lock(&w->lock);
    dt__conn *k = dt__conn_new(w, fd, DT__KIND_REGISTER, peer);
    if (k) {
        k->state = DT__CONN_READY;
        w->control->above = k;
        w->control->join = DT__JOIN_OPEN;
        /* now, not before: as soon as its row is there, other ranks may be sent here, and their rows follow this one */
        dt__conn_send(k, DT__C_MEMBER, w->rank, &w->member[w->rank], sizeof *w->member);
    }
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
    if (k) return 0;
    close(fd);
    return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory");
}
static void dt__control_registered(dt__world *w)
{
    pthread_mutex_lock(&w->lock);
    dt__conn *k = w->control->above;
    w->control->above = NULL;
    if (k) {
        dt__conn_send(k, DT__C_BYE, w->rank, NULL, 0);
        k->end_expected = true;
        if (k->state != DT__CONN_BROKEN) k->state = DT__CONN_CLOSING;
    }
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
}
static void dt__control_end(dt__world *w) /* without waiting for other ranks, unless dt__world_unref asked to leave */
{
    dt__control *ctl = w->control;
    pthread_mutex_lock(&w->lock);
    if (ctl->leave == DT__LEAVE_NO) { /* joining failed: queued frames are sent for at most 300 ms */
        ctl->leave = DT__LEAVE_ALONE;
        ctl->release_deadline = dt__comm_now() + 300 * DT__NS_PER_MS;
    }
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
    pthread_join(ctl->thread, NULL);
    dt__control_free(w);
}
DT__INSIDE void dt__world_unref(dt__world *w)
{
    if (!w || __atomic_sub_fetch(&w->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    if (w->sim) {
        for (dt__conn *k = w->control->conns; k; k = k->next)
            if (dt__conn_live(k) && k->kind == DT__KIND_TREE) dt__conn_send(k, DT__C_BYE, w->rank, NULL, 0);
        w->control->leave = DT__LEAVE_GOODBYE;
        w->sim_ops->leave(w);
        return;
    }
    if (w->control) {
        dt__control *ctl = w->control;
        pthread_mutex_lock(&w->lock);
        bool   hurt = ctl->ndied > 0 || ctl->naborts > 0;
        double wait = w->tolerant ? 0 : hurt && w->timeout > 1 ? 1 : w->timeout;
        ctl->leave = DT__LEAVE_ASKED;
        ctl->leave_deadline = dt__comm_now() + dt__ns_of(wait);
        pthread_mutex_unlock(&w->lock);
        dt__control_wake(w);
    }
    dt__world_close(w);
}
DT__SLOW_END

/* ==================================================================================================== >>shared
   Ranks of one machine share a memory segment: processes a memfd, threads an anonymous mapping. The thread that drives the
   communicator calls these functions. There is no lock between ranks: each word of a slot or channel has one writer, and
   readers use atomic loads. (The lock of dt__shared protects only the arena blocks of this rank.)

   Each rank has a slot in the segment. In a shared operation every rank publishes a post: what it is about to do, and
   where its vector is or, if it is short, the vector itself. Each rank has two posts and uses them in turn. That is safe: a
   rank that writes its post of operation k+2 has seen the posts of k+1 of all ranks, and each rank wrote that one after it
   had read all posts of k.
     short      the vector is in the post: every rank reads all posts and reduces for itself. One synchronisation.
     direct     all ranks can see all vectors: each rank reduces its part and writes it to all vectors.
     staged     other vectors pass through a few stages of each rank, piece by piece. Each rank copies a piece to its stage
                except for its own part, reduces its part from all stages into all stages, and then copies the parts that
                the others wrote to its stage.
   Plans (rings, trees ...) send through a channel for each ordered pair of ranks: a frame, then the payload in a few
   fragments or, if the receiver can see the payload, its position.

   Memory. Head, slots and flags are backed when the segment is made; everything else when its writer uses it first: a
   segment of 1,024 ranks has a million channels. Nobody may touch what is not backed, not even to read: when memory is
   short that is a SIGBUS. So a reader waits for a sign of the writer. For a channel that is the flag of the receiver
   (dt__channel_flag), for stages the counter 'put'.

   Arenas (dt_comm_alloc). The arena of a rank is a row of chunks: the chunk of level k has chunk << k bytes. In the file
   the chunks of level 0 of all ranks come first, then those of level 1, and so on: level, rank and position follow from an
   offset. Level 0 is mapped with the segment. A rank adds a chunk of a higher level when it needs it (dt__arena_open), so
   address space is used in proportion to what is allocated; the other ranks map it when they first see an offset in it
   (dt__arena_see). Such a chunk is called far.

   A waiting rank spins, then yields, then sleeps on the futex of the segment (dt__idle in dt_comm.h). Before it sleeps, it
   writes to its slot which counters it waits for. A rank that publishes something wakes those sleepers that can go on now:
   usually this is done by the last rank that reaches a counter, and by one system call. */

static dt__channel *dt__channel_of(const dt__shared *s, int from, int to)
{
    return (dt__channel *)(void *)(s->base + dt__shared_channels(s->n)) + ((size_t)from * (size_t)s->n + (size_t)to);
}
static uint8_t *dt__channel_flag(const dt__shared *s, int from, int to) /* atomic: the sender has opened the channel */
{
    return (uint8_t *)s->base + dt__shared_flags(s->n) + (size_t)to * (size_t)s->n + (size_t)from;
}
#define DT__HUGE (INT64_C(2) << 20) /* bytes: chunks are aligned to large pages */
DT__INSIDE int64_t dt__shared_arenas(int n)
{
    int64_t at = (int64_t)(dt__shared_rings(n) + (size_t)n * (size_t)n * dt__ring_nbytes(n));
    return (at + DT__HUGE - 1) & ~(DT__HUGE - 1);
}

DT__INSIDE void dt__shared_fail(dt__shared *s, int status, int rank, const char *text)
{
    if (__atomic_exchange_n(&s->head->failing, 1, __ATOMIC_SEQ_CST)) return;
    snprintf(s->head->text, sizeof s->head->text, "%s", text);
    s->head->rank = rank;
    __atomic_store_n(&s->head->status, status, __ATOMIC_RELEASE);
}
/* ---- waking and sleeping */
static void dt__shared_call(dt__shared *s, uint32_t bits) /* wakes claimed sleepers; a bit for each rank, modulo 32 */
{
    if (!bits) return;
    __atomic_add_fetch(&s->head->bell, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &s->head->bell, FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, bits);
}
DT__INSIDE void dt__shared_wake_one(dt__shared *s, int i)
{
    if (i != s->me && dt__sleeper_claim(s, i)) dt__shared_call(s, 1u << (i & 31));
}
DT__INSIDE void dt__shared_wake(dt__shared *s)
{
    uint32_t bits = 0;
    for (int i = 0; i < s->n; i++)
        if (dt__sleeper_claim(s, i)) bits |= 1u << (i & 31);
    dt__shared_call(s, bits);
}
static uint64_t dt__slot_count(const dt__rank_slot *t, int k) /* counter k */
{
    const uint64_t *word = k == DT__FIN ? &t->fin : k == DT__PUT ? &t->put : &t->part;
    return __atomic_load_n(k <= DT__POST_ODD ? &t->post[k].no : word, __ATOMIC_ACQUIRE);
}
DT__INSIDE void dt__shared_notify(dt__shared *s)
{
    uint64_t least[DT__COUNTERS]; /* over all ranks; determined if a sleeper waits for it */
    unsigned known = 0;           /* a bit for each counter */
    uint32_t bits = 0;
    for (int i = 0; i < s->n; i++) {
        dt__rank_slot *t = dt__slot_of(s, i);
        bool           any = true, go = false;
        if (i == s->me || !__atomic_load_n(&t->asleep, __ATOMIC_ACQUIRE)) continue;
        for (int k = 0; k < DT__COUNTERS && !go; k++) {
            uint64_t want = __atomic_load_n(&t->want[k], __ATOMIC_RELAXED);
            if (!want) continue;
            any = false;
            if (!(known >> k & 1u)) least[k] = UINT64_MAX;
            for (int r = 0; r < s->n && !(known >> k & 1u); r++) {
                uint64_t count = dt__slot_count(dt__slot_of(s, r), k);
                if (count < least[k]) least[k] = count;
            }
            known |= 1u << k;
            go = least[k] >= want;
        }
        if ((go || any) && dt__sleeper_claim(s, i)) bits |= 1u << (i & 31);
    }
    dt__shared_call(s, bits);
}
enum { DT__FEW = 64 }; /* ranks that may each look at all others every few milliseconds */
DT__INSIDE void dt__shared_sleep_on(dt__shared *s, uint32_t bell, int64_t ns)
{
    struct timespec t, *until = &t;
    clock_gettime(CLOCK_MONOTONIC, &t); /* FUTEX_WAIT_BITSET takes a time, not a duration */
    t = dt__timespec_of((int64_t)t.tv_sec * DT__NS_PER_S + t.tv_nsec + ns * (1 + (s->n - 1) / DT__FEW)); /* together they look equally often */
    syscall(SYS_futex, &s->head->bell, FUTEX_WAIT_BITSET, bell, until, NULL, 1u << (s->me & 31));
}
DT__INSIDE void dt__shared_sleep(dt__shared *s, uint32_t bell, int64_t ns)
{
    dt__shared_sleep_on(s, bell, ns);
    dt__shared_rise(s);
}
DT__INSIDE void dt__shared_wake_self(dt__shared *s)
{
    dt__shared_call(s, 1u << (s->me & 31));
}

/* ---- crowded cores: other programs run on the cores of the ranks. Then yielding is wrong: the other program gets a whole
   time slice, often 4 ms. A rank that finds this (dt__crowd_found) remembers it for a while, for all communicators of its
   process and for the ranks of the segment. While it is remembered, ranks sleep instead of yielding (dt__idle). Afterwards
   they yield again; if this finds the same within a short time, they remember it for twice as long. */
#define DT__CROWD_NS (100 * DT__NS_PER_MS)       /* how long it is remembered, at first */
#define DT__CROWD_MOST_NS (1600 * DT__NS_PER_MS) /* and at most */
static int64_t dt__crowd_until, dt__crowd_last, dt__crowd_span; /* atomic. ns: as dt__segment_head.crowded; the last value of
                                                                   it; how long it was */
DT__INSIDE void dt__crowd_found(dt__shared *s, int64_t now)
{
    int64_t last = __atomic_load_n(&dt__crowd_last, __ATOMIC_RELAXED), span = __atomic_load_n(&dt__crowd_span, __ATOMIC_RELAXED);
    if (now - last > DT__CROWD_NS) span = DT__CROWD_NS;
    else if (now > last && span < DT__CROWD_MOST_NS) span *= 2;
    __atomic_store_n(&dt__crowd_span, span, __ATOMIC_RELAXED);
    __atomic_store_n(&dt__crowd_last, now + span, __ATOMIC_RELAXED);
    __atomic_store_n(&dt__crowd_until, now + span, __ATOMIC_RELAXED);
    if (s) __atomic_store_n(&s->head->crowded, now + span, __ATOMIC_RELAXED);
}
#define DT__CROWD_GAPS_NS (50 * DT__NS_PER_MS) /* so many gaps within this time are a crowd */
enum { DT__CROWD_GAPS = 3 };
DT__INSIDE void dt__crowd_gap(dt__shared *s, int64_t now)
{
    static int64_t first, n; /* atomic: the first of these gaps, ns; how many. Several threads may disturb each other: no harm */
    int64_t        k = 1;
    if (now - __atomic_load_n(&first, __ATOMIC_RELAXED) > DT__CROWD_GAPS_NS) __atomic_store_n(&first, now, __ATOMIC_RELAXED);
    else k = __atomic_load_n(&n, __ATOMIC_RELAXED) + 1;
    __atomic_store_n(&n, k, __ATOMIC_RELAXED);
    if (k >= DT__CROWD_GAPS || dt__crowd_known(s)) dt__crowd_found(s, now);
}
static bool dt__crowd_over(int64_t *until, int64_t now)
{
    int64_t t = __atomic_load_n(until, __ATOMIC_RELAXED);
    return now >= t && (!t || __atomic_compare_exchange_n(until, &t, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}
DT__INSIDE bool dt__crowd_known(const dt__shared *s) /* without the clock: it may be over by now */
{
    return __atomic_load_n(&dt__crowd_until, __ATOMIC_RELAXED) || (s && __atomic_load_n(&s->head->crowded, __ATOMIC_RELAXED));
}
DT__INSIDE bool dt__crowd_ends(dt__shared *s, int64_t now) /* true: the cores are not crowded, or no longer */
{
    bool over = dt__crowd_over(&dt__crowd_until, now);
    return (!s || dt__crowd_over(&s->head->crowded, now)) && over;
}
DT__INSIDE bool dt__shared_gives_way(dt__shared *s, const uint64_t *want)
{
    unsigned core = 0;
    if (syscall(SYS_getcpu, &core, NULL, NULL)) return true;
    __atomic_store_n(&dt__slot_of(s, s->me)->core, (int32_t)core + 1, __ATOMIC_RELAXED);
    for (int i = 0; i < s->n; i++) {
        const dt__rank_slot *t = dt__slot_of(s, i);
        bool                 any = true, late = false;
        if (i == s->me || __atomic_load_n(&t->core, __ATOMIC_RELAXED) != (int32_t)core + 1) continue;
        for (int k = 0; k < DT__COUNTERS; k++) {
            if (!want[k]) continue;
            any = false;
            late = late || dt__slot_count(t, k) < want[k];
        }
        if (late || (any && !__atomic_load_n(&t->asleep, __ATOMIC_RELAXED))) return true;
    }
    return false;
}

/* ---- notes: what each rank does */
DT__INSIDE bool dt__shared_last(const dt_comm *c, int rank, dt__frame *f, uint64_t *done)
{
    const dt__shared *s = (const dt__shared *)__atomic_load_n(&c->shared, __ATOMIC_ACQUIRE);
    if (!s || s->index[rank] < 0) return false;
    const dt__rank_slot *t = dt__slot_of(s, s->index[rank]);
    uint64_t        begun = __atomic_load_n(&t->begun, __ATOMIC_ACQUIRE);
    *done = __atomic_load_n(&t->done, __ATOMIC_ACQUIRE);
    return begun && dt__note_get(t->note, begun - 1, f);
}
/* Called while waiting. False: another rank has begun a different operation with this number; the communicator has failed. */
DT__INSIDE bool dt__shared_agree(dt_comm *c, const dt__frame *mine)
{
    dt__shared *s = (dt__shared *)c->shared;
    uint64_t    print = dt__frame_print(mine);
    for (int k = 0; k < s->n && k < DT__FEW; k++) { /* of many ranks the next few; called again, it looks at the others */
        int             i = s->looked = s->looked + 1 < s->n ? s->looked + 1 : 0;
        const dt__note *n = &dt__slot_of(s, i)->note[mine->seq % DT__NOTES];
        dt__frame       f;
        if (i == s->me || __atomic_load_n(&n->seq, __ATOMIC_ACQUIRE) != mine->seq + 1 || n->print == print) continue;
        if (!dt__note_get(dt__slot_of(s, i)->note, mine->seq, &f)) continue;
        if (!c->client->frame_ok(c, s->rank[i], mine, &f)) return false;
    }
    return true;
}

/* ---- memory of a segment. fallocate first: touching a hole when memory is exhausted raises SIGBUS. */
DT__INSIDE bool dt__segment_take(int fd, int64_t at, int64_t n)
{
    while (n > 0 && fd >= 0) { /* in pieces: a signal undoes the whole interrupted call */
        int64_t k = n < 2 << 20 ? n : 2 << 20;
        if (syscall(SYS_fallocate, fd, 0, (off_t)at, (off_t)k) == 0) at += k, n -= k;
        else if (errno != EINTR) return false;
    }
    return true;
}
static int dt__channel_short(dt_comm *c, const dt__shared *s, int to)
{
    return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: cannot allocate shared memory for messages to rank %d: %s",
                         c->rank, s->rank[to], strerror(errno));
}
static bool dt__channel_take(dt_comm *c, dt__shared *s, int to, size_t n) /* n: bytes of a fragment */
{
    int64_t at = (int64_t)((char *)dt__channel_of(s, s->me, to)->data - s->base);
    size_t  k = 4096;
    if (s->fd < 0 || n <= s->ready[to]) return true;
    while (k < n) k *= 2;
    for (int i = 0; i < DT__FRAGMENTS; i++)
        if (!dt__segment_take(s->fd, at + (int64_t)i * DT__FRAGMENT, (int64_t)k)) return dt__channel_short(c, s, to), false;
    s->ready[to] = k;
    return true;
}
static bool dt__channel_open(dt_comm *c, dt__shared *s, int to) /* before the first message to that rank */
{
    uint8_t *flag = dt__channel_flag(s, s->me, to);
    int64_t  at = (int64_t)((char *)dt__channel_of(s, s->me, to) - s->base);
    if (__atomic_load_n(flag, __ATOMIC_RELAXED)) return true;
    if (s->fd >= 0 && !dt__segment_take(s->fd, at, (int64_t)offsetof(dt__channel, data)))
        return dt__channel_short(c, s, to), false;
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    return true;
}
DT__INSIDE bool dt__shared_stage(dt_comm *c, dt__shared *s, int n)
{
    int64_t at = (int64_t)dt__shared_stages(s->n) + (int64_t)s->me * DT__STAGE_SPAN + (int64_t)s->staged * DT__PIECE;
    if (s->staged >= n) return true;
    if (s->fd < 0 || dt__segment_take(s->fd, at, (int64_t)(n - s->staged) * DT__PIECE)) s->staged = n;
    else
        dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: cannot allocate %d KiB of shared memory for reductions: %s", c->rank,
                      (n - s->staged) * (DT__PIECE >> 10), strerror(errno));
    return s->staged >= n;
}

/* ---- channels */
static int dt__shared_send(dt_comm *c, int peer, dt__msg *m)
{
    dt__shared  *s = (dt__shared *)c->shared;
    dt__channel *h = dt__channel_of(s, s->me, s->index[peer]);
    if (!dt__channel_open(c, s, s->index[peer])) return c->status;
    uint64_t     tail = __atomic_load_n(&h->tail, __ATOMIC_ACQUIRE);
    if (m->state == DT__MSG_NEW) {
        if (h->head != tail) return 0; /* the previous message is not received yet */
        DT__ON_SEND();
        h->frame = m->head;
        h->at = m->n > 4096 ? dt__shared_at(s, m->ptr, m->n) : -1;
        if (h->at < 0 && m->n &&
            !dt__channel_take(c, s, s->index[peer], m->n < DT__FRAGMENT ? m->n : (size_t)DT__FRAGMENT))
            return c->status;
        m->state = DT__MSG_BODY;
        if (h->at >= 0 || !m->n) {
            __atomic_store_n(&h->head, h->head + 1, __ATOMIC_RELEASE);
            dt__shared_ring_to(s, s->index[peer]);
            m->done = m->n;
            if (h->at >= 0) m->state = DT__MSG_IN_PLACE; /* wait until the receiver has read it in place */
        }
    }
    if (m->state == DT__MSG_IN_PLACE) return tail == h->head;
    bool moved = false;
    while (m->done < m->n && h->head - tail < DT__FRAGMENTS) {
        size_t k = m->n - m->done < DT__FRAGMENT ? m->n - m->done : (size_t)DT__FRAGMENT;
        memcpy(h->data[h->head % DT__FRAGMENTS], m->ptr + m->done, k);
        m->done += k;
        __atomic_store_n(&h->head, h->head + 1, __ATOMIC_RELEASE);
        tail = __atomic_load_n(&h->tail, __ATOMIC_ACQUIRE);
        moved = true;
    }
    if (moved) dt__shared_ring_to(s, s->index[peer]);
    return m->done == m->n;
}
static void dt__msg_take(const dt_comm *c, dt__msg *m, const void *src, size_t k) /* copies or reduces the next k bytes */
{
    if (m->fold) c->client->fold(m->dtype, m->op, m->ptr + m->done, src, (int64_t)(k / dt__elem_nbytes(m->dtype)), m->left);
    else dt__comm_copy(m->ptr + m->done, src, k);
    m->done += k;
}
static int dt__shared_recv(dt_comm *c, int peer, dt__msg *m)
{
    dt__shared  *s = (dt__shared *)c->shared;
    dt__channel *h = dt__channel_of(s, s->index[peer], s->me);
    if (!__atomic_load_n(dt__channel_flag(s, s->index[peer], s->me), __ATOMIC_ACQUIRE)) return 0;
    uint64_t     head = __atomic_load_n(&h->head, __ATOMIC_ACQUIRE);
    if (head == h->tail) return 0;
    if (m->state == DT__MSG_NEW) {
        if (!c->client->frame_ok(c, peer, &m->head, &h->frame)) return c->status;
        if (h->at >= 0) {
            const char *from = dt__shared_see(s, h->at, m->n);
            if (!from) return dt__shared_unseen(c, peer, m->n);
            if (!dt__shared_touch(s)) return 0;
            dt__msg_take(c, m, from, m->n);
            dt__shared_leave(s);
        }
        m->state = DT__MSG_BODY;
        if (h->at >= 0 || !m->n) {
            __atomic_store_n(&h->tail, h->tail + 1, __ATOMIC_RELEASE);
            dt__shared_ring_to(s, s->index[peer]);
            return 1;
        }
    }
    while (m->done < m->n && head != h->tail) {
        size_t k = m->n - m->done < DT__FRAGMENT ? m->n - m->done : (size_t)DT__FRAGMENT;
        dt__msg_take(c, m, h->data[h->tail % DT__FRAGMENTS], k);
        __atomic_store_n(&h->tail, h->tail + 1, __ATOMIC_RELEASE);
        head = __atomic_load_n(&h->head, __ATOMIC_ACQUIRE);
    }
    dt__shared_ring_to(s, s->index[peer]);
    return m->done == m->n;
}

/* ---- a segment */
static int64_t dt__arena_size(void) /* bytes that a rank may allocate: the memory of the machine */
{
    int64_t pages = (int64_t)sysconf(_SC_PHYS_PAGES), page = (int64_t)sysconf(_SC_PAGESIZE);
    const char *s = getenv("DT_COMM_ARENA"); /* MiB */
    if (s && atoll(s) > 0 && atoll(s) < INT64_C(1) << 26) return (int64_t)atoll(s) << 20;
    return pages > 0 && page > 0 ? pages * page : INT64_C(1) << 34;
}
/* May the file end at this offset? A larger file than RLIMIT_FSIZE raises SIGXFSZ. */
static bool dt__segment_may_end(int64_t end)
{
    struct rlimit most;
    if (getrlimit(RLIMIT_FSIZE, &most) || most.rlim_cur == RLIM_INFINITY || (uint64_t)end <= (uint64_t)most.rlim_cur) return true;
    errno = EFBIG;
    return false;
}
#ifndef DT__ARENA_CHUNK /* bytes of the first chunk of an arena, at most; a power of 2. Tests make it smaller */
#define DT__ARENA_CHUNK (INT64_C(256) << 20)
#endif
/* Creates a segment for n ranks. Negative: see errno. */
DT__INSIDE int dt__segment_new(int n)
{
    int64_t fixed = dt__shared_arenas(n), arena = dt__arena_size(), chunk = DT__ARENA_CHUNK;
    int     fd, e;
    /* 4 GiB together, or what a rank may allocate, or what fits in the file, if that is less */
    while (chunk > DT__HUGE && (chunk > (INT64_C(4) << 30) / n || chunk / 2 >= arena || !dt__segment_may_end(fixed + n * chunk)))
        chunk /= 2;
    if (!dt__segment_may_end(fixed + n * chunk)) return -1;
    fd = (int)syscall(SYS_memfd_create, "dt", 1u /* close on exec */);
    if (fd < 0) return -1;
    if (ftruncate(fd, (off_t)(fixed + n * chunk)) == 0 && dt__segment_take(fd, 0, (int64_t)dt__shared_stages(n)) &&
        pwrite(fd, &chunk, sizeof chunk, (off_t)offsetof(dt__segment_head, chunk)) == (ssize_t)sizeof chunk)
        return fd;
    e = errno;
    close(fd);
    errno = e;
    return -1;
}
/* Bytes of the segment that every rank maps; 0: the file is not a segment of n ranks. */
static size_t dt__segment_nbytes(int fd, int n)
{
    struct stat st;
    int64_t     chunk = 0, fixed = dt__shared_arenas(n);
    errno = EINVAL;
    if (pread(fd, &chunk, sizeof chunk, (off_t)offsetof(dt__segment_head, chunk)) != (ssize_t)sizeof chunk || fstat(fd, &st) ||
        chunk < DT__HUGE || (chunk & (chunk - 1)) || chunk > ((int64_t)st.st_size - fixed) / n)
        return 0;
    return (size_t)(fixed + n * chunk);
}
DT__INSIDE int dt__shared_cores(uint64_t *set)
{
    uint64_t all[DT__CORES / 64];
    long     n = syscall(SYS_sched_getaffinity, 0, sizeof all, all);
    int      cores = 0;
    for (long i = 0; i < DT__CORES / 64; i++) {
        uint64_t word = i < n / 8 ? all[i] : 0;
        cores += __builtin_popcountll(word);
        if (set) set[i] = word;
    }
    return cores ? cores : 1;
}
/* Number of polls before the first yield: 0 if the ranks together may use fewer cores than there are ranks. */
DT__INSIDE int dt__shared_spin(dt__shared *s)
{
    uint64_t all[DT__CORES / 64];
    int      cores = 0;
    if (s->spin >= 0) return s->spin;
    memset(all, 0, sizeof all);
    for (int i = 0; i < s->n; i++) {
        const dt__rank_slot *t = dt__slot_of(s, i);
        if (!__atomic_load_n(&t->has_cores, __ATOMIC_ACQUIRE)) return 0; /* not known yet */
        for (int k = 0; k < DT__CORES / 64; k++) all[k] |= t->cores[k];
    }
    for (int k = 0; k < DT__CORES / 64; k++) cores += __builtin_popcountll(all[k]);
    s->spin = s->n <= cores || !cores ? 4000 : 0;
    return s->spin;
}
DT__INSIDE void dt__shared_free(dt__shared *s)
{
    if (!s) return;
    for (dt__arena_block *b = s->blocks; b;) {
        dt__arena_block *next = b->next;
        DT_COMM_FREE(b);
        b = next;
    }
    for (int k = 0; k < DT__LEVELS; k++) {
        for (int i = 0; s->far[k] && i < s->n; i++)
            if (s->far[k][i]) munmap(s->far[k][i], (size_t)(s->chunk << k));
        DT_COMM_FREE(s->far[k]);
    }
    bool last = s->base && (s->fd >= 0 || !__atomic_sub_fetch(&s->head->refs, 1, __ATOMIC_ACQ_REL));
    if (last) munmap(s->base, s->nbytes);
    if (s->fd >= 0) close(s->fd);
    DT_COMM_FREE(s->index);
    DT_COMM_FREE(s->rank);
    DT_COMM_FREE(s->ready);
    pthread_mutex_destroy(&s->lock);
    DT_COMM_FREE(s);
}
/* Threads tell each other directly that a member goes: its slot says so to those that come later. The lock is held for a few
   instructions, by threads of one process, which cannot be stopped alone: waiting for it needs no deadline. */
DT__INSIDE void dt__head_lock(dt__segment_head *h)
{
    while (__atomic_exchange_n(&h->lock, 1, __ATOMIC_ACQUIRE)) sched_yield();
}
DT__INSIDE void dt__head_unlock(dt__segment_head *h) { __atomic_store_n(&h->lock, 0, __ATOMIC_RELEASE); }
DT__INSIDE void dt__threads_enter(dt_comm *c)
{
    dt__shared *s = (dt__shared *)c->shared;
    dt__head_lock(s->head);
    dt__slot_of(s, s->me)->comm = c;
    for (int i = 0; i < s->n; i++)
        if (dt__slot_of(s, i)->gone && i != s->me)
            dt__members_gone(c, i, dt__slot_of(s, i)->gone, dt__slot_of(s, i)->gone_done, dt__slot_of(s, i)->gone_why);
    dt__head_unlock(s->head);
}
DT__INSIDE void dt__threads_leave(dt_comm *c)
{
    dt__shared *s = (dt__shared *)c->shared;
    dt__head_lock(s->head);
    dt__slot_of(s, s->me)->comm = NULL;
    dt__head_unlock(s->head);
}
static void dt__threads_part(dt_comm *c, int rank, int how, uint64_t done, const char *why)
{
    dt__shared    *s = (dt__shared *)c->shared;
    dt__rank_slot *t = dt__slot_of(s, rank);
    dt__head_lock(s->head);
    bool news = !t->gone;
    if (news) t->gone = how, t->gone_done = done, snprintf(t->gone_why, sizeof t->gone_why, "%s", why);
    for (int i = 0; news && i < s->n; i++) {
        dt_comm *d = dt__slot_of(s, i)->comm;
        if (d && i != rank) dt__members_gone(d, rank, how, done, why);
        else if (d && d != c) dt__comm_failed(d, DT_COMM_ERR_PEER, rank, why);
    }
    dt__head_unlock(s->head);
}
/* The shared memory of c. n ranks of c are on this machine; member: their ranks in c. Threads: the segment is at base.
   Processes: it is mapped from fd. */
DT__INSIDE dt__shared *dt__shared_new(dt_comm *c, const int *local, int n, char *base, size_t nbytes, int fd)
{
    dt__shared *s = (dt__shared *)dt__comm_zeroed(1, sizeof *s);
    if (!s) return NULL;
    s->fd = fd;
    s->base = base;
    s->nbytes = nbytes;
    s->n = n;
    pthread_mutex_init(&s->lock, NULL);
    s->index = (int *)DT_COMM_MALLOC((size_t)dt__comm_room(c) * sizeof *s->index);
    s->rank = (int *)DT_COMM_MALLOC((size_t)n * sizeof *s->rank);
    s->ready = (size_t *)dt__comm_zeroed((size_t)n, sizeof *s->ready);
    if (fd >= 0 && s->index && s->rank && s->ready) {
        void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        s->base = p == MAP_FAILED ? NULL : (char *)p;
    }
    if (!s->base || !s->index || !s->rank || !s->ready) {
        if (fd < 0) s->base = NULL; /* the caller unmaps it */
        s->fd = -1;                 /* the caller closes it */
        dt__shared_free(s);
        return NULL;
    }
    s->head = (dt__segment_head *)(void *)s->base;
    for (int i = 0; i < dt__comm_room(c); i++) s->index[i] = -1;
    for (int i = 0; i < n; i++) {
        s->rank[i] = local[i];
        s->index[local[i]] = i;
        if (local[i] == c->rank) s->me = i;
    }
    s->spin = -1;
    s->nstages = DT__STAGES;
    dt__shared_cores(dt__slot_of(s, s->me)->cores);
    __atomic_store_n(&dt__slot_of(s, s->me)->has_cores, 1u, __ATOMIC_RELEASE);
    __atomic_store_n(&c->note, (struct dt__note *)dt__slot_of(s, s->me)->note, __ATOMIC_RELEASE);
    s->stages = s->base + dt__shared_stages(n);
    if (fd >= 0) {
        s->arenas = dt__shared_arenas(n);
        s->chunk = ((int64_t)nbytes - s->arenas) / n;
        s->arena_most = dt__arena_size();
        madvise(s->base + s->arenas + s->me * s->chunk, (size_t)s->chunk, MADV_HUGEPAGE);
    }
    return s;
}

/* ---- the arena */
static int64_t dt__arena_begin(const dt__shared *s, int level) { return (s->chunk << level) - s->chunk; } /* as in block.at */
static int     dt__arena_level(const dt__shared *s, int64_t at)
{
    return 63 - __builtin_clzll((unsigned long long)(at / s->chunk) + 1);
}
static int64_t dt__chunk_at(const dt__shared *s, int level, int i) /* offset of the chunk of rank i in the segment */
{
    return s->arenas + s->n * dt__arena_begin(s, level) + i * (s->chunk << level);
}
static char *dt__chunk_of(const dt__shared *s, int level, int i) /* where it is mapped; NULL: it is not */
{
    if (level == 0) return s->base + dt__chunk_at(s, 0, i);
    char **far = __atomic_load_n(&s->far[level], __ATOMIC_ACQUIRE);
    return far ? __atomic_load_n(&far[i], __ATOMIC_ACQUIRE) : NULL;
}
static char *dt__chunk_map(dt__shared *s, int level, int i) /* under the lock. NULL: see errno */
{
    struct stat st;
    int64_t     at = dt__chunk_at(s, level, i), n = s->chunk << level;
    char       *p = dt__chunk_of(s, level, i);
    if (p) return p;
    errno = EINVAL; /* the last page of a chunk is allocated first, so the file has the whole chunk, or the chunk is not in use */
    if (fstat(s->fd, &st) || n > (int64_t)st.st_size || at > (int64_t)st.st_size - n) return NULL;
    if (!s->far[level]) {
        char **far = (char **)dt__comm_zeroed((size_t)s->n, sizeof *far);
        errno = ENOMEM;
        if (!far) return NULL;
        __atomic_store_n(&s->far[level], far, __ATOMIC_RELEASE);
    }
    p = (char *)mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, s->fd, (off_t)at);
    if ((void *)p == MAP_FAILED) return NULL;
    if (i == s->me) madvise(p, (size_t)n, MADV_HUGEPAGE);
    __atomic_store_n(&s->far[level][i], p, __ATOMIC_RELEASE);
    return p;
}
DT__INSIDE int64_t dt__arena_at(const dt__shared *s, const void *p, size_t nbytes)
{
    uint64_t opened = __atomic_load_n(&s->opened, __ATOMIC_ACQUIRE);
    for (int k = 1; opened >> k; k++) {
        uintptr_t a = (uintptr_t)p, b = opened >> k & 1 ? (uintptr_t)dt__chunk_of(s, k, s->me) : UINTPTR_MAX;
        size_t    n = (size_t)(s->chunk << k);
        if (a >= b && a - b < n && nbytes <= n - (a - b)) return dt__chunk_at(s, k, s->me) + (int64_t)(a - b);
    }
    return -1;
}
DT__INSIDE char *dt__arena_see(dt__shared *s, int64_t at, size_t nbytes)
{
    errno = EINVAL;
    if (at < s->arenas) return NULL;
    int     level = dt__arena_level(s, (at - s->arenas) / s->n);
    if (level < 1 || level >= DT__LEVELS) return NULL;
    int64_t n = s->chunk << level, rest = at - dt__chunk_at(s, level, 0), i = rest / n;
    if (i >= s->n || nbytes > (size_t)(n - rest % n)) return NULL;
    char *p = dt__chunk_of(s, level, (int)i);
    if (!p) {
        pthread_mutex_lock(&s->lock);
        p = dt__chunk_map(s, level, (int)i);
        pthread_mutex_unlock(&s->lock);
    }
    return p ? p + rest % n : NULL;
}
DT__INSIDE int dt__shared_unseen(dt_comm *c, int rank, size_t nbytes)
{
    return dt__comm_fail(c, errno == EINVAL ? DT_COMM_ERR_MISMATCH : DT_COMM_ERR_MEMORY, c->rank,
                         errno == EINVAL ? "rank %d: rank %d names a vector of %zu bytes that is not in its shared memory: %s"
                                         : "rank %d: cannot map the shared memory of rank %d, for a vector of %zu bytes: %s; "
                                           "is the address space limited (ulimit -v)?",
                         c->rank, rank, nbytes, strerror(errno));
}
static dt__arena_block *dt__block_cut(dt__arena_block *b, int64_t n) /* b keeps n bytes, the rest is a block; NULL: no memory */
{
    dt__arena_block *rest = (dt__arena_block *)DT_COMM_MALLOC(sizeof *rest);
    if (!rest) return NULL;
    *rest = *b;
    rest->at += n;
    rest->n -= n;
    b->n = n;
    b->next = rest;
    return rest;
}
static dt__arena_block *dt__arena_open(dt__shared *s, int64_t n) /* adds a chunk for a block of n bytes; NULL: it cannot */
{
    int level = 0;
    while (level < DT__LEVELS && (s->opened >> level & 1 || s->chunk << level < n)) level++;
    if (level == DT__LEVELS) return NULL;
    int64_t size = s->chunk << level, end = dt__chunk_at(s, level, s->me) + size;
    dt__arena_block *b = (dt__arena_block *)DT_COMM_MALLOC(sizeof *b), **p = &s->blocks;
    if (b && level > 0 &&
        (!dt__segment_may_end(end) || !dt__segment_take(s->fd, end - 4096, 4096) || !dt__chunk_map(s, level, s->me))) {
        DT_COMM_FREE(b);
        return NULL;
    }
    if (!b) return NULL;
    b->at = dt__arena_begin(s, level);
    b->n = size;
    b->used = false;
    while (*p && (*p)->at < b->at) p = &(*p)->next;
    b->next = *p;
    *p = b;
    __atomic_store_n(&s->opened, s->opened | UINT64_C(1) << level, __ATOMIC_RELEASE);
    return b;
}
/* Finds or makes a free block of n bytes, aligned, and marks it as used; under the lock. NULL: there is none. */
static dt__arena_block *dt__arena_find(dt__shared *s, int64_t n, int64_t align)
{
    dt__arena_block *b = s->blocks;
    if (n > s->arena_most - s->arena_used) return NULL;
    while (b && (b->used || b->n < n || b->n - n < (align - b->at % align) % align)) b = b->next;
    if (!b && !(b = dt__arena_open(s, n))) return NULL;
    if (b->at % align && !(b = dt__block_cut(b, align - b->at % align))) return NULL;
    if (b->n > n && !dt__block_cut(b, n)) return NULL;
    b->used = true;
    s->arena_used += n;
    return b;
}
static void dt__arena_join(dt__shared *s, dt__arena_block *b) /* b and the next block become one, if both are free */
{
    dt__arena_block *next = b ? b->next : NULL;
    if (!next || b->used || next->used || dt__arena_level(s, b->at) != dt__arena_level(s, next->at)) return;
    b->n += next->n;
    b->next = next->next;
    DT_COMM_FREE(next);
}
static bool dt__arena_release(dt__shared *s, int64_t at) /* false: no used block begins there */
{
    dt__arena_block *last = NULL, *b = s->blocks;
    pthread_mutex_lock(&s->lock);
    for (b = s->blocks; b && (b->at != at || !b->used); b = b->next) last = b;
    if (b) {
        int     level = dt__arena_level(s, at);
        int64_t in_file = dt__chunk_at(s, level, s->me) + at - dt__arena_begin(s, level);
        b->used = false;
        s->arena_used -= b->n;
        if (b->n >= 1 << 20)
            syscall(SYS_fallocate, s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)in_file, (off_t)b->n);
        dt__arena_join(s, b);
        dt__arena_join(s, last);
    }
    pthread_mutex_unlock(&s->lock);
    return b != NULL;
}
DT__INSIDE void *dt__arena_alloc(dt__shared *s, size_t nbytes)
{
    int64_t n = (int64_t)((nbytes + 63) & ~(size_t)63), align = n >= 4096 ? 4096 : 64;
    if (n >= 4096) n = (n + 4095) & ~INT64_C(4095);
    pthread_mutex_lock(&s->lock);
    dt__arena_block *b = dt__arena_find(s, n, align);
    int64_t          at = b ? b->at : 0;
    pthread_mutex_unlock(&s->lock);
    if (!b) return NULL;
    int     level = dt__arena_level(s, at);
    int64_t in_chunk = at - dt__arena_begin(s, level);
    if (!dt__segment_take(s->fd, dt__chunk_at(s, level, s->me) + in_chunk, n)) {
        dt__arena_release(s, at);
        return NULL;
    }
    char *p = dt__chunk_of(s, level, s->me) + in_chunk;
    for (int64_t i = 0; i < n; i += 4096) *(volatile char *)(p + i) = 0;
    return p;
}
DT__INSIDE bool dt__arena_free(dt__shared *s, void *ptr) /* false: ptr is not in the arena */
{
    int64_t at = dt__shared_at(s, ptr, 0);
    if (at < s->arenas) return false;
    int     level = dt__arena_level(s, (at - s->arenas) / s->n);
    int64_t in_chunk = at - dt__chunk_at(s, level, s->me);
    return in_chunk >= 0 && in_chunk < s->chunk << level && dt__arena_release(s, dt__arena_begin(s, level) + in_chunk);
}
/* Maps the segment of the ranks of c on this machine. The first of them creates it and passes its descriptor on. */
static int dt__shared_open(dt_comm *c, const int *local, int n)
{
    dt__world  *w = c->world;
    int        *world = (int *)DT_COMM_MALLOC((size_t)n * sizeof *world), fd = -1, e = 0;
    char        why[400];
    if (!world) return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory");
    for (int i = 0; i < n; i++) world[i] = c->member[local[i]];
    if (local[0] == c->rank && (fd = dt__segment_new(n)) < 0) e = errno;
    int got = dt__world_pass_fd(w, c->id, world, n, fd);
    DT_COMM_FREE(world);
    if (e)
        return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: rank %d cannot create shared memory for %d ranks: %s",
                            c->rank, n, strerror(e));
    if (got < 0) {
        snprintf(why, sizeof why, "%.390s", dt__said.text);
        if (fd >= 0) close(fd);
        return dt__comm_bad(dt__said.why, "dt_comm_init: rank %d has no shared memory: %s", c->rank, why);
    }
    size_t      nbytes = dt__segment_nbytes(got, n);
    dt__shared *s = nbytes ? dt__shared_new(c, local, n, NULL, nbytes, got) : NULL;
    __atomic_store_n(&c->shared, (void *)s, __ATOMIC_RELEASE); /* the control thread reads it */
    if (!s) {
        e = errno;
        close(got);
        return dt__comm_bad(DT_COMM_ERR_MEMORY,
                            "dt_comm_init: rank %d cannot map %lld MiB of shared memory: %s; DT_COMM_ARENA=MiB sets "
                            "how much of it is for dt_comm_alloc",
                            c->rank, (long long)(nbytes >> 20), strerror(e));
    }
    return 0;
}
static void dt__shared_close(dt_comm *c)
{
    dt__shared_free((dt__shared *)c->shared);
    c->shared = NULL;
}
static const dt__transport dt__transport_shm = {
    "shm", DT__REACH_HOST, true, false, dt__shared_open, dt__shared_send, dt__shared_recv, NULL, NULL, dt__shared_close,
    NULL, NULL, NULL, NULL, NULL, NULL
};
static const dt__transport dt__transport_threads = { /* the same functions; the segment is memory of this process */
    "threads", DT__REACH_HOST, true, false, NULL, dt__shared_send, dt__shared_recv, NULL, NULL, dt__shared_close,
    NULL, NULL, NULL, NULL, NULL, NULL
};

/* ==================================================================================================== >>tcp
   The thread that drives the communicator calls these functions; no lock is needed.

   A link is the connection to one peer, over c->streams sockets. A message is a header, then the payload, on stream 0. A
   payload of DT__TCP_STRIPE bytes or more is split into one contiguous part for each stream. The header is only on stream
   0, and no other stream is read before the header is checked. A send is done when the kernel has all bytes.

   A closed connection shows that the peer is gone, but not why, nor whether another rank failed first. The control tree
   reports that. The link waits for this report for DT__TCP_GRACE, and only then fails the communicator itself.

   c->bandwidth is emulated by a token bucket that all links of the rank share; it holds 2 ms worth of bytes. While
   something is queued the bucket fills without limit, as a wire keeps sending while its rank computes. c->latency is
   emulated by the receiver: a message is delivered this long after its last byte arrived (by the kernel's timestamp, if
   there is one). The values of rank 0 are part of the costs by which algorithms are chosen. */

/* Every call on a socket goes through these macros. Tests replace them, to inject faults and to provide their own links. */
#ifndef DT__SEND
#define DT__SEND(fd, msg, flags) sendmsg(fd, msg, flags)
#endif
#ifndef DT__RECV
#define DT__RECV(fd, msg, flags) recvmsg(fd, msg, flags)
#endif
#ifndef DT__POLL
#define DT__POLL(fds, n, timespec) (int)syscall(SYS_ppoll, fds, n, timespec, NULL, 0)
#endif
#ifndef DT__WORLD_LINK
#define DT__WORLD_LINK dt__world_link
#define DT__WORLD_ABORT dt__world_abort
#define DT__WORLD_ASK dt__world_ask
#endif
#ifndef DT__FRAME_OK
#define DT__FRAME_OK(c, peer, want, got) (c)->client->frame_ok(c, peer, want, got)
#endif

enum {
    DT__TCP_STREAMS = 16,
    DT__TCP_STRIPE = 256 << 10,
    DT__TCP_STAGE = 256 << 10, /* bytes of the buffer for data that is reduced on arrival */
    DT__TCP_SMALL = 4 << 10,   /* up to this many bytes, header and payload are read in one call */
    DT__TCP_TURN = 1 << 20,    /* bytes that one call moves at most, so that both directions make progress */
    DT__TCP_BUFFER = 4 << 20,  /* bytes of the socket buffers, in each direction */
    DT__TCP_WAKE = 128 << 10,  /* bytes of a long payload that must have arrived to wake the progress thread */
    DT__TCP_GRACE = 500        /* ms */
};
typedef struct dt__tcp_direction {       /* one direction of a link: the current message */
    size_t   done[DT__TCP_STREAMS]; /* payload bytes of each stream's part that have moved */
    size_t   held[DT__TCP_STREAMS]; /* of these, bytes in the stage that are not reduced yet */
    size_t   rest[DT__TCP_STREAMS]; /* bytes still to come, for a stream that was found empty */
    uint32_t blocked;               /* streams that the last call found full or empty, a bit each */
    bool     more;                  /* the last call stopped before it was blocked */
    int64_t  ready;                 /* ns: nothing moves before this time; 0: at once */
} dt__tcp_direction;
typedef struct dt__tcp_link {
    int         fd[DT__TCP_STREAMS]; /* -1: not open */
    int         peer;
    int         wake[DT__TCP_STREAMS]; /* SO_RCVLOWAT of the socket; 0: the default, 1 byte */
    uint32_t    opening;             /* streams whose connections are not there yet, a bit each */
    int64_t     died;                /* ns: when a socket was found closed; 0: all are open */
    int         error;               /* errno of that; 0: closed in order */
    int64_t     missed;              /* ns: when a stream was not there although the peer had left; 0: not so */
    int64_t     arrived;             /* ns: when the last byte arrived */
    size_t      ahead;               /* payload bytes in 'small' that were read with the header */
    dt__tcp_direction in, out;
    dt__frame   got;
    char       *stage;
    char        small[DT__TCP_SMALL];
} dt__tcp_link;
typedef struct dt__tcp {
    dt__tcp_link **link;   /* by peer; NULL: not used yet */
    dt__tcp_link **used;   /* the links that are not NULL, without gaps */
    int            nused, streams;
    int            sndbuf, rcvbuf; /* bytes; 0: the default of the kernel */
    double         tokens; /* bytes that may be sent now; negative: debt */
    bool           queued; /* something has been waiting for tokens since 'filled' */
    int64_t        filled; /* ns: when tokens was last updated */
    uint64_t       sent;   /* bytes, with headers; atomic */
} dt__tcp;

DT__INSIDE void dt__pollset_add(dt__pollset *set, int fd, int events)
{
    if (set->n == set->cap) {
        int            cap = set->cap ? 2 * set->cap : 8;
        struct pollfd *p = (struct pollfd *)DT_COMM_REALLOC(set->p, (size_t)cap * sizeof *p);
        if (!p) {
            int64_t soon = dt__comm_now() + DT__NS_PER_MS;
            if (soon < set->until) set->until = soon;
            return;
        }
        set->p = p;
        set->cap = cap;
    }
    set->p[set->n].fd = fd;
    set->p[set->n].events = (short)events;
    set->p[set->n++].revents = 0;
}
DT__INSIDE void dt__pollset_wait(const dt_comm *c, dt__pollset *set)
{
    int64_t now = dt__comm_now();
    int     woken = set->n;
    if (c->wake_fd >= 0) dt__pollset_add(set, c->wake_fd, POLLIN);
    struct timespec t = dt__timespec_of(!dt__comm_ok(c) || set->until < now ? 0 : set->until - now);
    if (DT__POLL(set->p, (nfds_t)set->n, &t) > 0 && woken < set->n && (set->p[woken].revents & POLLIN)) {
        uint64_t times;
        if (read(c->wake_fd, &times, sizeof times) < 0) return; /* another thread has read it */
    }
}
DT__INSIDE int dt__transport_status(const dt_comm *c) /* status of a communicator that has failed */
{
    int status = __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
    return status ? status : DT_COMM_ERR_NET;
}
/* Fails c on all ranks; returns the status. */
DT__INSIDE int dt__transport_fail(dt_comm *c, int status, int rank, const char *format, ...)
{
    char    text[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    if (c->members && (status == DT_COMM_ERR_PEER || status == DT_COMM_ERR_NET)) { /* only collectives end */
        status = rank >= 0 && dt__members_how(c, rank, NULL, 0) ? DT_COMM_ERR_PEER : DT_COMM_ERR_TIMEOUT;
        dt__members_halt(c, status, 0, text);
        if (c->world) dt__world_abort_id(c->world, c->id, status, rank, text);
        return dt__comm_bad(status, "%s", text);
    }
    if (c->members) return dt__comm_fail(c, status, rank, "%s", text);
    if (c->world) DT__WORLD_ABORT(c->world, c, status, rank, text);
    dt__comm_failed(c, status, rank, text);
    return dt__transport_status(c);
}

/* Setting a buffer size above the system limit truncates it and stops autotuning: then the kernel's default is better. */
static int dt__tcp_buffer(const char *limit)
{
    char    text[32];
    int     fd = open(limit, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    return atol(text) >= DT__TCP_BUFFER ? DT__TCP_BUFFER : 0;
}
static dt__tcp *dt__tcp_of(dt_comm *c)
{
    dt__tcp *t = (dt__tcp *)c->across_data;
    size_t   n = (size_t)c->size;
    if (t) return t;
    t = (dt__tcp *)DT_COMM_MALLOC(sizeof *t);
    if (t) {
        memset(t, 0, sizeof *t);
        t->streams = c->streams < 1 ? 1 : c->streams > DT__TCP_STREAMS ? DT__TCP_STREAMS : c->streams;
        t->link = (dt__tcp_link **)DT_COMM_MALLOC(n * sizeof *t->link);
        t->used = (dt__tcp_link **)DT_COMM_MALLOC(n * sizeof *t->used);
    }
    if (!t || !t->link || !t->used) {
        if (t) DT_COMM_FREE(t->link), DT_COMM_FREE(t->used);
        DT_COMM_FREE(t);
        dt__transport_fail(c, DT_COMM_ERR_MEMORY, c->rank, "tcp: out of memory for the links of rank %d", c->rank);
        return NULL;
    }
    memset(t->link, 0, n * sizeof *t->link);
    t->sndbuf = dt__tcp_buffer("/proc/sys/net/core/wmem_max");
    t->rcvbuf = dt__tcp_buffer("/proc/sys/net/core/rmem_max");
    t->filled = dt__comm_now();
    __atomic_store_n(&c->across_data, (void *)t, __ATOMIC_RELEASE);
    return t;
}
static dt__tcp_link *dt__tcp_link_of(dt_comm *c, int peer)
{
    dt__tcp       *t = dt__tcp_of(c);
    dt__tcp_link  *l;
    if (!t) return NULL;
    if (t->link[peer]) return t->link[peer];
    l = (dt__tcp_link *)DT_COMM_MALLOC(sizeof *l);
    if (!l) {
        dt__transport_fail(c, DT_COMM_ERR_MEMORY, c->rank, "tcp: out of memory for the link from rank %d to rank %d", c->rank,
                           peer);
        return NULL;
    }
    memset(l, 0, sizeof *l);
    for (int s = 0; s < DT__TCP_STREAMS; s++) l->fd[s] = -1;
    l->peer = peer;
    t->link[peer] = t->used[t->nused++] = l;
    return l;
}
/* Errors are ignored: Unix sockets do not have these options. */
static void dt__tcp_tune(dt_comm *c, dt__tcp *t, int peer, int fd)
{
    int one = 1, ms = c->timeout > 0 && c->timeout < 1e6 ? (int)(c->timeout * 1000) + 5000 : 0;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    /* Inside a machine nothing is congested. BBR, if it is the default, paces its packets; whenever the receiver had to wait
       for a core, it takes the connection for slower than it is. */
    if (c->host && c->host[peer] == c->host[c->rank]) (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    if (t->sndbuf) (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &t->sndbuf, sizeof t->sndbuf);
    if (t->rcvbuf) (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &t->rcvbuf, sizeof t->rcvbuf);
    /* ms is 5 s longer than the timeout, so that the engine's inquiry comes first */
    if (ms) (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
    if (c->latency > 0) (void)setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
}
static int dt__tcp_gone(dt_comm *c, dt__tcp_link *l, int error);
/* 1: stream s is open; 0: not yet; negative: failed */
static int dt__tcp_open(dt_comm *c, dt__tcp_link *l, int s)
{
    int fd;
    if (l->fd[s] >= 0) return 1;
    fd = DT__WORLD_LINK(c->world, c, c->member ? c->member[l->peer] : l->peer, s);
    if (fd == DT__FD_FAILED) return dt__transport_status(c);
    l->opening = fd < 0 ? l->opening | 1u << s : l->opening & ~(1u << s);
    if (fd < 0 && c->members && dt__members_how(c, l->peer, NULL, 0)) { /* the last connection of a peer that left may still come */
        if (!l->missed) l->missed = dt__comm_now();
        if (dt__comm_now() - l->missed >= DT__TCP_GRACE * DT__NS_PER_MS) l->died = l->missed;
        if (l->died) return dt__tcp_gone(c, l, 0);
    }
    if (fd < 0) return 0;
    dt__tcp_tune(c, (dt__tcp *)c->across_data, l->peer, fd);
    l->fd[s] = fd;
    return 1;
}
/* The offset of the part of stream s in a payload of n bytes; n for s == streams. It never splits an element. */
static size_t dt__tcp_part(size_t n, int streams, int s)
{
    size_t per = (n / (size_t)streams + 64) & ~(size_t)63;
    return s == streams || (size_t)s * per > n ? n : (size_t)s * per;
}

/* The peer or the network has closed the connection: see above. 0: wait; negative: failed. */
static int dt__tcp_gone(dt_comm *c, dt__tcp_link *l, int error)
{
    char who[200], me[80];
    if (!dt__comm_ok(c)) return dt__transport_status(c);
    if (!l->died) {
        l->died = dt__comm_now();
        l->error = error;
    }
    if (dt__comm_now() - l->died < DT__TCP_GRACE * DT__NS_PER_MS) return 0;
    return dt__transport_fail(c, DT_COMM_ERR_PEER, l->peer,
                        "%s is gone: its connection to %s was %s%s; see its last output for the reason",
                        dt__comm_who(c, l->peer, true, who, sizeof who), dt__comm_who(c, c->rank, false, me, sizeof me),
                        l->error ? "lost: " : "closed in an operation", l->error ? strerror(l->error) : "");
}
static int dt__tcp_error(dt_comm *c, dt__tcp_link *l, int error, const char *call) /* a socket call failed with error */
{
    switch (error) {
    case ECONNRESET:
    case EPIPE:
    case ETIMEDOUT:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
    case EHOSTDOWN: return dt__tcp_gone(c, l, error);
    default:
        return dt__transport_fail(c, DT_COMM_ERR_NET, l->peer, "tcp: %s between ranks %d and %d: %s", call, c->rank, l->peer,
                            strerror(error));
    }
}

/* How many of n bytes may be sent now; 0: not before *ready. */
static size_t dt__tcp_allowed(const dt_comm *c, dt__tcp *t, size_t n, int64_t *ready)
{
    double  burst = c->bandwidth * 2e-3;
    int64_t now;
    *ready = 0;
    if (c->bandwidth <= 0) return n;
    if (burst < 1448) burst = 1448;
    now = dt__comm_now();
    t->tokens += dt__seconds_of(now - t->filled) * c->bandwidth;
    t->filled = now;
    if (t->tokens > burst && !t->queued) t->tokens = burst; /* an idle wire does not save up bandwidth */
    if (t->tokens > 0) return (double)n < burst ? n : (size_t)burst;
    t->queued = true;
    *ready = now + dt__ns_of(-t->tokens / c->bandwidth) + 1;
    return 0;
}
/* For the sockets of messages (dt_msg.h). */
DT__INSIDE void dt__tcp_tune_fd(dt_comm *c, int peer, int fd)
{
    dt__tcp *t = dt__tcp_of(c);
    if (t) dt__tcp_tune(c, t, peer, fd);
}
DT__INSIDE size_t dt__tcp_may_send(dt_comm *c, size_t n, int64_t *ready)
{
    if (c->bandwidth <= 0) return n;
    dt__tcp *t = dt__tcp_of(c);
    return t ? dt__tcp_allowed(c, t, n, ready) : n;
}
DT__INSIDE void dt__tcp_count_sent(dt_comm *c, size_t n, size_t of) /* n bytes of a message, which still had this many */
{
    dt__tcp *t = (dt__tcp *)c->across_data;
    if (!t) return;
    t->tokens -= (double)n;
    t->queued = t->queued && n < of;
    __atomic_fetch_add(&t->sent, (uint64_t)n, __ATOMIC_RELAXED);
}
/* Sends what it can of stream s without waiting. 0, or negative: failed. */
static int dt__tcp_push(dt_comm *c, dt__tcp_link *l, int s, dt__msg *m, char *from, size_t n)
{
    dt__tcp     *t = (dt__tcp *)c->across_data;
    dt__tcp_direction *w = &l->out;
    size_t       moved = 0;
    for (;;) {
        size_t        head = s == 0 ? sizeof m->head - m->head_done : 0, rest = n - w->done[s], may;
        struct iovec  v[2];
        struct msghdr mh;
        ssize_t       r;
        if (head + rest == 0) return 0;
        if (moved >= DT__TCP_TURN) {
            w->more = true;
            return 0;
        }
        may = dt__tcp_allowed(c, t, head + rest < DT__TCP_TURN ? head + rest : (size_t)DT__TCP_TURN, &w->ready);
        if (may == 0) return 0;
        memset(&mh, 0, sizeof mh);
        v[0].iov_base = (char *)&m->head + m->head_done;
        v[0].iov_len = head < may ? head : may;
        v[1].iov_base = from + w->done[s];
        v[1].iov_len = may - v[0].iov_len;
        mh.msg_iov = head ? v : v + 1;
        mh.msg_iovlen = head ? 2 : 1;
        r = DT__SEND(l->fd[s], &mh, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            w->blocked |= 1u << s;
            return 0;
        }
        if (r < 0) return dt__tcp_error(c, l, errno, "send");
        t->tokens -= (double)r;
        t->queued = t->queued && (size_t)r < head + rest;
        moved += (size_t)r;
        __atomic_fetch_add(&t->sent, (uint64_t)r, __ATOMIC_RELAXED);
        if ((size_t)r < head) head = (size_t)r;
        m->head_done += head;
        w->done[s] += (size_t)r - head;
        m->done += (size_t)r - head;
    }
}
static int dt__tcp_send(dt_comm *c, int peer, dt__msg *m)
{
    dt__tcp_link *l;
    int           streams, r;
    if (!dt__comm_ok(c)) return dt__transport_status(c);
    l = dt__tcp_link_of(c, peer);
    if (!l) return dt__transport_status(c);
    if (m->state == DT__MSG_NEW) {
        DT__ON_SEND();
        memset(l->out.done, 0, sizeof l->out.done);
    }
    m->state = DT__MSG_BODY;
    l->out.blocked = 0;
    l->out.more = false;
    l->out.ready = 0;
    if (l->died) return dt__tcp_gone(c, l, 0);
    streams = m->n < DT__TCP_STRIPE ? 1 : ((dt__tcp *)c->across_data)->streams;
    for (int s = 0; s < streams; s++) {
        size_t at = dt__tcp_part(m->n, streams, s), end = dt__tcp_part(m->n, streams, s + 1);
        r = dt__tcp_open(c, l, s);
        if (r > 0) r = dt__tcp_push(c, l, s, m, m->ptr + at, end - at);
        if (r < 0) return r;
    }
    return m->head_done == sizeof m->head && m->done == m->n;
}

/* ns: when the bytes of a recvmsg call arrived. The kernel's timestamp is in CLOCK_REALTIME. */
static int64_t dt__tcp_stamp(struct msghdr *mh)
{
    int64_t now = dt__comm_now();
    for (struct cmsghdr *h = CMSG_FIRSTHDR(mh); h; h = CMSG_NXTHDR(mh, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec at, day;
            int64_t         age;
            memcpy(&at, CMSG_DATA(h), sizeof at);
            clock_gettime(CLOCK_REALTIME, &day);
            age = ((int64_t)day.tv_sec - at.tv_sec) * DT__NS_PER_S + (day.tv_nsec - at.tv_nsec);
            if (age > 0 && age < 10 * DT__NS_PER_S) return now - age;
        }
    return now;
}
/* Reads into at most two buffers. *got: bytes read, 0: nothing has arrived. Returns 0, or negative: failed. */
static int dt__tcp_read(dt_comm *c, dt__tcp_link *l, int s, struct iovec *v, int nv, size_t *got)
{
    union {
        struct cmsghdr align;
        char           bytes[CMSG_SPACE(sizeof(struct timespec))];
    } control;
    for (;;) {
        struct msghdr mh;
        ssize_t       r;
        *got = 0;
        memset(&mh, 0, sizeof mh);
        mh.msg_iov = v;
        mh.msg_iovlen = (size_t)nv;
        if (c->latency > 0) {
            mh.msg_control = control.bytes;
            mh.msg_controllen = sizeof control.bytes;
        }
        r = DT__RECV(l->fd[s], &mh, MSG_DONTWAIT);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            l->in.blocked |= 1u << s;
            return 0;
        }
        if (r < 0) return dt__tcp_error(c, l, errno, "receive");
        if (r == 0) return dt__tcp_gone(c, l, 0);
        *got = (size_t)r;
        if (c->latency > 0) {
            int64_t at = dt__tcp_stamp(&mh);
            if (at > l->arrived) l->arrived = at;
        }
        return 0;
    }
}
/* Reads the header, and in the same call a small payload. It goes to l->small: bytes of the next message may follow. */
static int dt__tcp_head(dt_comm *c, dt__tcp_link *l, dt__msg *m)
{
    while (m->head_done < sizeof l->got) {
        struct iovec v[2];
        size_t       got, head = sizeof l->got - m->head_done;
        int          r;
        v[0].iov_base = (char *)&l->got + m->head_done;
        v[0].iov_len = head;
        v[1].iov_base = l->small;
        v[1].iov_len = m->n <= DT__TCP_SMALL ? m->n : 0;
        r = dt__tcp_read(c, l, 0, v, v[1].iov_len ? 2 : 1, &got);
        if (r < 0 || got == 0) return r;
        if (got > head) l->ahead = got - head;
        m->head_done += got < head ? got : head;
    }
    if (!DT__FRAME_OK(c, l->peer, &m->head, &l->got)) {
        dt__comm_failed(c, DT_COMM_ERR_MISMATCH, l->peer, "tcp: received a message with an unexpected header");
        return dt__transport_status(c);
    }
    if (l->got.nbytes != m->n)
        return dt__transport_fail(c, DT_COMM_ERR_MISMATCH, l->peer,
                            "rank %d sends %" PRIu64 " bytes in round %u of operation %" PRIu64 ", rank %d expects %zu",
                            l->peer, l->got.nbytes, l->got.step, l->got.seq, c->rank, m->n);
    m->state = DT__MSG_BODY;
    return 0;
}
/* Reduces the complete elements among the held bytes at 'from'. */
static void dt__tcp_fold(const dt_comm *c, dt__msg *m, dt__tcp_direction *w, int s, char *to, char *from)
{
    size_t size = dt__elem_nbytes(m->dtype), part = w->held[s] % size, whole = w->held[s] - part;
    if (!whole) return;
    c->client->fold(m->dtype, m->op, to + w->done[s] - w->held[s], from, (int64_t)(whole / size), m->left);
    if (part) memmove(from, from + whole, part);
    w->held[s] = part;
}
static int dt__tcp_pull(dt_comm *c, dt__tcp_link *l, int s, dt__msg *m, char *to, size_t n)
{
    dt__tcp_direction *w = &l->in;
    size_t       room = (DT__TCP_STAGE / (size_t)((dt__tcp *)c->across_data)->streams) & ~(size_t)63, moved = 0;
    char        *stage = m->n <= DT__TCP_SMALL ? l->small : l->stage ? l->stage + (size_t)s * room : NULL;
    if (m->n <= DT__TCP_SMALL) room = DT__TCP_SMALL;
    while (w->done[s] < n) {
        struct iovec v;
        size_t       got, rest = n - w->done[s];
        int          r;
        if (moved >= DT__TCP_TURN) {
            w->more = true;
            return 0;
        }
        v.iov_base = m->fold ? stage + w->held[s] : to + w->done[s];
        v.iov_len = rest < DT__TCP_TURN ? rest : (size_t)DT__TCP_TURN;
        if (m->fold && v.iov_len > room - w->held[s]) v.iov_len = room - w->held[s];
        r = dt__tcp_read(c, l, s, &v, 1, &got);
        w->rest[s] = rest;
        if (r < 0 || got == 0) return r;
        moved += got;
        w->done[s] += got;
        m->done += got;
        if (!m->fold) continue;
        w->held[s] += got;
        dt__tcp_fold(c, m, w, s, to, stage);
    }
    return 0;
}
/* The bytes that dt__tcp_head read after the header are the beginning of the payload. */
static void dt__tcp_take(const dt_comm *c, dt__tcp_link *l, dt__msg *m)
{
    if (!l->ahead) return;
    l->in.done[0] = m->done = l->ahead;
    if (m->fold) {
        l->in.held[0] = l->ahead;
        dt__tcp_fold(c, m, &l->in, 0, m->ptr, l->small);
    } else memcpy(m->ptr, l->small, l->ahead);
    l->ahead = 0;
}
static int dt__tcp_recv(dt_comm *c, int peer, dt__msg *m)
{
    dt__tcp_link *l;
    int           streams, r;
    if (!dt__comm_ok(c)) return dt__transport_status(c);
    l = dt__tcp_link_of(c, peer);
    if (!l) return dt__transport_status(c);
    l->in.blocked = 0;
    l->in.more = false;
    l->in.ready = 0;
    if (m->state == DT__MSG_NEW) {
        memset(&l->in, 0, sizeof l->in);
        l->ahead = 0;
        m->state = DT__MSG_HEAD;
    }
    if (l->died) return dt__tcp_gone(c, l, 0);
    if (m->state == DT__MSG_HEAD) {
        r = dt__tcp_open(c, l, 0);
        if (r > 0) r = dt__tcp_head(c, l, m);
        if (r < 0 || m->state == DT__MSG_HEAD) return r;
        if (m->fold && m->n > DT__TCP_SMALL && !l->stage) {
            l->stage = (char *)DT_COMM_MALLOC(DT__TCP_STAGE);
            if (!l->stage)
                return dt__transport_fail(c, DT_COMM_ERR_MEMORY, c->rank, "tcp: rank %d: out of memory for a receive buffer",
                                          c->rank);
        }
        dt__tcp_take(c, l, m);
    }
    streams = m->n < DT__TCP_STRIPE ? 1 : ((dt__tcp *)c->across_data)->streams;
    for (int s = 0; s < streams; s++) {
        size_t at = dt__tcp_part(m->n, streams, s), end = dt__tcp_part(m->n, streams, s + 1);
        r = dt__tcp_open(c, l, s);
        if (r > 0) r = dt__tcp_pull(c, l, s, m, m->ptr + at, end - at);
        if (r < 0) return r;
    }
    if (m->done < m->n) return 0;
    if (c->latency > 0) l->in.ready = l->arrived + dt__ns_of(c->latency);
    if (l->in.ready && dt__comm_now() < l->in.ready) return 0;
    l->in.ready = 0;
    return 1;
}

/* Each wake-up of the progress thread costs the computing program time: so not for every packet of a long payload. */
static void dt__tcp_low(const dt_comm *c, dt__tcp_link *l, int s)
{
    size_t rest = l->in.rest[s];
    int    want = !c->client->aside(c) || rest < DT__TCP_WAKE / 4 ? 1 : rest < DT__TCP_WAKE ? (int)rest : (int)DT__TCP_WAKE;
    if (want == (l->wake[s] ? l->wake[s] : 1)) return;
    if (setsockopt(l->fd[s], SOL_SOCKET, SO_RCVLOWAT, &want, sizeof want) == 0) l->wake[s] = want;
}
/* The sockets that the last calls found blocked. */
static void dt__tcp_fds(dt_comm *c, dt__pollset *set)
{
    dt__tcp *t = dt__tcp_of(c);
    for (int i = 0; t && i < t->nused; i++) {
        dt__tcp_link *l = t->used[i];
        int64_t       at = set->until;
        if (l->died) at = l->died + DT__TCP_GRACE * DT__NS_PER_MS;
        else if (l->missed && l->opening) at = l->missed + DT__TCP_GRACE * DT__NS_PER_MS;
        else if (l->in.more || l->out.more) at = 0;
        if (l->in.ready && l->in.ready < at) at = l->in.ready;
        if (l->out.ready && l->out.ready < at) at = l->out.ready;
        if (at < set->until) set->until = at;
        for (int s = 0; s < t->streams && !l->died; s++) {
            short events = (short)((l->out.blocked >> s & 1 ? POLLOUT : 0) | (l->in.blocked >> s & 1 ? POLLIN : 0));
            if (!events || l->fd[s] < 0) continue;
            if (events & POLLIN) dt__tcp_low(c, l, s);
            dt__pollset_add(set, l->fd[s], events);
        }
    }
}
/* The kernel still delivers the bytes that were sent. */
static void dt__tcp_close(dt_comm *c)
{
    dt__tcp *t = (dt__tcp *)c->across_data;
    if (!t) return;
    __atomic_store_n(&c->across_data, (void *)NULL, __ATOMIC_RELEASE);
    for (int i = 0; i < t->nused; i++) {
        dt__tcp_link *l = t->used[i];
        for (int s = 0; s < t->streams; s++)
            if (l->fd[s] >= 0) {
                shutdown(l->fd[s], SHUT_WR);
                close(l->fd[s]);
            }
        DT_COMM_FREE(l->stage);
        DT_COMM_FREE(l);
    }
    DT_COMM_FREE(t->link);
    DT_COMM_FREE(t->used);
    DT_COMM_FREE(t);
}
/* Bytes sent through sockets, with headers. Any thread, while the communicator exists. */
static uint64_t dt__tcp_bytes(const dt_comm *c)
{
    const dt__tcp *t = (const dt__tcp *)__atomic_load_n(&c->across_data, __ATOMIC_ACQUIRE);
    return t ? __atomic_load_n(&t->sent, __ATOMIC_RELAXED) : 0;
}
static const dt__transport dt__transport_tcp = { /* links are opened at first use */
    "tcp", DT__REACH_ALL, false, false, NULL, dt__tcp_send, dt__tcp_recv, dt__tcp_fds, NULL, dt__tcp_close,
    dt__tcp_bytes, NULL, NULL, NULL, NULL, NULL
};

/* ==================================================================================================== >>transports
   A row for each transport. "auto" takes the first row of each reach. A row whose functions are in another header is
   filled by a constructor of that header (dt__transport_register), before main. */
static dt__transport_row dt__transports[] = {
    { "shm", &dt__transport_shm, NULL, NULL },
    { "tcp", &dt__transport_tcp, NULL, NULL },
    { "mpi", NULL, "include dt_mpi.h, compile with mpicc -DDT_USE_MPI (or -DDT_USE_MPI and MPI's flags), and start it with "
                   "mpirun", NULL },
    { "threads", &dt__transport_threads, NULL, "dt_comm_threads" },
    { "sim", NULL, NULL, "dt_sim_new of dt_sim.h" }
};
enum { DT__TRANSPORTS = sizeof dt__transports / sizeof dt__transports[0] };
static dt__transport_row *dt__transport_row_of(const char *name)
{
    for (int i = 0; i < DT__TRANSPORTS; i++)
        if (strcmp(dt__transports[i].name, name) == 0) return &dt__transports[i];
    return NULL;
}
DT__INSIDE void dt__transport_register(const dt__transport *t)
{
    dt__transport_row *row = dt__transport_row_of(t->name);
    if (row) row->transport = t;
}
DT__INSIDE const dt__transport *dt__transport_get(const char *name)
{
    const dt__transport_row *row = dt__transport_row_of(name);
    return row ? row->transport : NULL;
}
DT__INSIDE const dt__transport *dt__transport_auto(int reach)
{
    for (int i = 0; i < DT__TRANSPORTS; i++)
        if (dt__transports[i].transport && dt__transports[i].transport->reach == reach && !dt__transports[i].opener)
            return dt__transports[i].transport;
    return NULL;
}
static const char *dt__transport_name(const dt_comm_opts *o) /* NULL: auto */
{
    const char *name = o->transport ? o->transport : getenv("DT_COMM_TRANSPORT");
    return name && *name && strcmp(name, "auto") ? name : NULL;
}
DT__INSIDE const dt__transport_row *dt__transport_named(const dt_comm_opts *o)
{
    const char *name = dt__transport_name(o);
    return name ? dt__transport_row_of(name) : NULL;
}
DT__INSIDE int dt__world_transport(const dt__world *w, const dt_comm_opts *o, const dt__transport **out)
{
    const char              *name = dt__transport_name(o);
    const dt__transport_row *row = dt__transport_named(o);
    char                     known[200] = "auto";
    *out = w->joined_by;
    if (w->joined_by || !name) return 0;
    if (!row) {
        for (int i = 0; i < DT__TRANSPORTS; i++) {
            size_t n = strlen(known);
            if (!dt__transports[i].opener) snprintf(known + n, sizeof known - n, ", %s", dt__transports[i].name);
        }
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: transport \"%.40s\" is unknown; expected one of: %s", name, known);
    }
    if (row->opener)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: transport \"%s\" is opened by %s, not by dt_comm_init", name,
                            row->opener);
    if (!row->transport || row->transport->config)
        return dt__comm_bad(DT_COMM_ERR_ARG,
                            "dt_comm_init: transport \"%s\" must be named before the ranks join, but they have joined "
                            "without it", name);
    *out = row->transport;
    return 0;
}

#ifdef __cplusplus
}
#endif
#endif /* DT_NET_IMPLEMENTATION */
