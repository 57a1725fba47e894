/* A backend that keeps the thread which deletes a model busy after Triton's core is done with it. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef struct Error Error;
typedef struct Backend Backend;
typedef struct Model Model;
typedef struct Instance Instance;
typedef struct Request Request;

int ended_threads = 0;

static pthread_key_t at_exit;

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void linger(void *unused) {
  (void)unused;
  const double end_s = now_s() + 0.3;
  while (now_s() < end_s) continue;
  ended_threads = 1;
}

Error *TRITONBACKEND_Initialize(Backend *backend) {
  (void)backend;
  pthread_key_create(&at_exit, linger);
  return NULL;
}

Error *TRITONBACKEND_ModelFinalize(Model *model) {
  pthread_setspecific(at_exit, model);
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
  (void)instance;
  (void)requests;
  (void)count;
  return NULL;
}
