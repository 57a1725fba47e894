/* A libtritonserver in front of the real one, which answers readiness questions as cores have since
   2025-12: they ask each instance of a model. The folder NEWER_CORE has a file for each instance
   that a test speaks for, named after its model: "<milliseconds> <ready> <pid>". The answer takes
   so long; the process with that pid, if it is not 0, is reaped, and the instance is not ready
   without it. Instances of the in-process backend are asked themselves.
   While the file ".metadata" exists, the server's metadata call waits until the file is removed, at
   most its milliseconds. The call creates ".in-metadata" first. Deleting the server meanwhile
   aborts the process. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct Error Error;
typedef struct Server Server;
typedef struct Message Message;
typedef struct Model Model;
typedef struct Instance Instance;

enum { MODELS = 64 };
static Model *models[MODELS]; /* of the in-process backend, in the order of their loads */
static char *names[MODELS];   /* of a name, only the last one is sure to be there */
static int loaded;
static char backend[PATH_MAX]; /* the library that loaded them */
static volatile int in_metadata;

static void *from(const char *library, const char *name) {
  void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return handle == NULL ? NULL : dlsym(handle, name);
}

#define REAL(result, name, ...) \
  static result (*real)(__VA_ARGS__); \
  if (real == NULL) real = (result(*)(__VA_ARGS__))from(getenv("NEWER_CORE_REAL"), #name)

static bool told(const char *model, int *ms, int *ready, int *pid) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", getenv("NEWER_CORE"), model);
  FILE *file = fopen(path, "r");
  if (file == NULL) return false;
  bool complete = fscanf(file, "%d %d %d", ms, ready, pid) == 3;
  fclose(file);
  return complete;
}

static void mark(const char *name) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", getenv("NEWER_CORE"), name);
  FILE *file = fopen(path, "w");
  if (file != NULL) fclose(file);
}

static bool inprocess_ready(const char *name) {
  Error *(*ask)(Instance *) =
      (Error * (*)(Instance *)) from(backend, "TRITONBACKEND_ModelInstanceReady");
  void (*delete)(Error *) = (void (*)(Error *))from(getenv("NEWER_CORE_REAL"), "TRITONSERVER_ErrorDelete");
  for (int at = loaded - 1; ask != NULL && at >= 0; --at) {
    if (strcmp(names[at], name) != 0) continue;
    Error *error = ask((Instance *)models[at]);
    if (error != NULL) delete (error);
    return error == NULL;
  }
  return true;
}

static bool instances_ready(const char *model) {
  int ms = 0, ready = 1, pid = 0;
  if (!told(model, &ms, &ready, &pid)) return inprocess_ready(model);
  usleep(1000 * ms);
  return ready && (pid == 0 || waitpid(pid, NULL, WNOHANG) == 0);
}

Error *TRITONSERVER_ServerModelIsReady(Server *server, const char *name, int64_t version, bool *ready) {
  REAL(Error *, TRITONSERVER_ServerModelIsReady, Server *, const char *, int64_t, bool *);
  Error *error = real(server, name, version, ready);
  if (error == NULL && *ready) *ready = instances_ready(name);
  return error;
}

Error *TRITONSERVER_ServerIsReady(Server *server, bool *ready) {
  REAL(Error *, TRITONSERVER_ServerIsReady, Server *, bool *);
  Error *error = real(server, ready);
  DIR *folder = opendir(getenv("NEWER_CORE"));
  struct dirent *entry;
  while (error == NULL && *ready && (entry = readdir(folder)) != NULL)
    if (entry->d_name[0] != '.') *ready = instances_ready(entry->d_name);
  closedir(folder);
  return error;
}

Error *TRITONSERVER_ServerMetadata(Server *server, Message **message) {
  REAL(Error *, TRITONSERVER_ServerMetadata, Server *, Message **);
  int ms = 0, ready, pid;
  if (told(".metadata", &ms, &ready, &pid)) {
    in_metadata = 1;
    mark(".in-metadata");
    for (int left = ms; left > 0 && told(".metadata", &ms, &ready, &pid); left -= 5) usleep(5000);
  }
  Error *error = real(server, message);
  in_metadata = 0;
  return error;
}

Error *TRITONSERVER_ServerDelete(Server *server) {
  REAL(Error *, TRITONSERVER_ServerDelete, Server *);
  if (in_metadata) abort();
  return real(server);
}

Error *TRITONBACKEND_ModelSetState(Model *model, void *state) {
  REAL(Error *, TRITONBACKEND_ModelSetState, Model *, void *);
  Dl_info caller;
  if (dladdr(__builtin_return_address(0), &caller) != 0)
    snprintf(backend, sizeof backend, "%s", caller.dli_fname);
  Error *(*name_of)(Model *, const char **) =
      (Error * (*)(Model *, const char **)) from(getenv("NEWER_CORE_REAL"), "TRITONBACKEND_ModelName");
  const char *name;
  if (loaded < MODELS && name_of(model, &name) == NULL) {
    names[loaded] = strdup(name);
    models[loaded++] = model;
  }
  return real(model, state);
}

/* The instance of a model of the in-process backend is its model, where it is asked above. */
Error *TRITONBACKEND_ModelInstanceModel(Instance *instance, Model **model) {
  REAL(Error *, TRITONBACKEND_ModelInstanceModel, Instance *, Model **);
  for (int at = 0; at < loaded; ++at) {
    if ((void *)models[at] != (void *)instance) continue;
    *model = models[at];
    return NULL;
  }
  return real(instance, model);
}
