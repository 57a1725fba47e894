/* Preloaded into a gateway (LD_PRELOAD): a wall clock that a test moves, DNS names that take long to
   resolve, and a record of the programs and processes that any of its code starts. The file WORLD
   has the settings, two 64-bit numbers: the offset of the wall clock and the time that each name
   takes, both in seconds. The file STARTED gets one line per start: the function and its
   argument. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <pty.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct world {
  volatile int64_t off_s, resolving_s;
};
static struct world still, *world = &still;
static const char *started;

__attribute__((constructor)) static void look(void) {
  started = getenv("STARTED");
  const char *path = getenv("WORLD");
  int file = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *seen = mmap(NULL, sizeof still, PROT_READ, MAP_SHARED, file, 0);
  if (seen != MAP_FAILED) world = seen;
  close(file);
}

#define NEXT(name) \
  static __typeof__(&name) next; \
  if (next == NULL) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int clock_gettime(clockid_t clock, struct timespec *now) {
  NEXT(clock_gettime);
  int failed = next(clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += world->off_s;
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  NEXT(gettimeofday);
  int failed = next(now, zone);
  if (!failed) now->tv_sec += world->off_s;
  return failed;
}

time_t time(time_t *told) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (told != NULL) *told = now.tv_sec;
  return now.tv_sec;
}

static int is_number(const char *name) {
  unsigned char address[sizeof(struct in6_addr)];
  return inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1;
}

int getaddrinfo(const char *restrict name, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict found) {
  NEXT(getaddrinfo);
  if (world->resolving_s == 0 || name == NULL || is_number(name))
    return next(name, service, hints, found);
  for (int64_t left_s = world->resolving_s; left_s > 0 && world->resolving_s != 0; left_s--) sleep(1);
  return EAI_AGAIN;
}

/* One write per line, so that concurrent lines do not mix. No stdio and no allocation, because this
   may run in a child between fork and exec. */
static void record(const char *function, const char *what) {
  int file = started != NULL ? open(started, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
  if (file < 0) return;
  char line[512];
  int length = snprintf(line, sizeof line - 1, "%s %s", function, what != NULL ? what : "");
  if (length > (int)sizeof line - 2) length = sizeof line - 2;
  line[length++] = '\n';
  if (write(file, line, length) != length) abort();
  close(file);
}

/* Each function needs its own wrapper: calls within glibc bypass these symbols. */
#define STARTS(result, name, what, parameters, ...) \
  result name parameters {                          \
    NEXT(name);                                     \
    record(#name, what);                            \
    return next(__VA_ARGS__);                       \
  }

STARTS(int, execve, path, (const char *path, char *const argv[], char *const env[]), path, argv, env)
STARTS(int, execv, path, (const char *path, char *const argv[]), path, argv)
STARTS(int, execvp, path, (const char *path, char *const argv[]), path, argv)
STARTS(int, execvpe, path, (const char *path, char *const argv[], char *const env[]), path, argv, env)
STARTS(int, fexecve, argv[0], (int file, char *const argv[], char *const env[]), file, argv, env)
STARTS(int, execveat, path,
       (int folder, const char *path, char *const argv[], char *const env[], int flags), folder, path,
       argv, env, flags)
STARTS(int, posix_spawn, path,
       (pid_t *restrict child, const char *restrict path, const posix_spawn_file_actions_t *actions,
        const posix_spawnattr_t *restrict attributes, char *const argv[restrict],
        char *const env[restrict]),
       child, path, actions, attributes, argv, env)
STARTS(int, posix_spawnp, path,
       (pid_t *restrict child, const char *restrict path, const posix_spawn_file_actions_t *actions,
        const posix_spawnattr_t *restrict attributes, char *const argv[restrict],
        char *const env[restrict]),
       child, path, actions, attributes, argv, env)
STARTS(int, system, command, (const char *command), command)
STARTS(FILE *, popen, command, (const char *command, const char *mode), command, mode)
STARTS(pid_t, fork, NULL, (void), )
STARTS(pid_t, forkpty, NULL,
       (int *master, char *name, const struct termios *mode, const struct winsize *size), master,
       name, mode, size)
STARTS(int, daemon, NULL, (int keeps_folder, int keeps_output), keeps_folder, keeps_output)

/* Calls fork: with vfork, parent and child would share this function's stack frame. */
pid_t vfork(void) {
  static pid_t (*next)(void);
  if (next == NULL) next = (pid_t(*)(void))dlsym(RTLD_NEXT, "fork");
  record("vfork", NULL);
  return next();
}

enum { MOST_ARGUMENTS = 256 };

/* The execl family: collects the variadic arguments in a list; the environment may follow them. */
#define LISTED(name, call, takes_env)                                     \
  int name(const char *path, const char *argument, ...) {                 \
    char *argv[MOST_ARGUMENTS + 1] = {(char *)argument};                  \
    va_list more;                                                         \
    va_start(more, argument);                                             \
    for (int i = 0; argv[i] != NULL; i++) {                               \
      if (i == MOST_ARGUMENTS) abort();                                   \
      argv[i + 1] = va_arg(more, char *);                                 \
    }                                                                     \
    char *const *env = takes_env ? va_arg(more, char *const *) : environ; \
    va_end(more);                                                         \
    return call;                                                          \
  }

LISTED(execl, execve(path, argv, env), 0)
LISTED(execle, execve(path, argv, env), 1)
LISTED(execlp, execvpe(path, argv, env), 0)
