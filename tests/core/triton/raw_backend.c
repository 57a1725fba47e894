/* A backend whose responses Python could not make: a tensor without a datatype beside a parameter
   that is not UTF-8, and then an error that is not UTF-8. */
#include <stddef.h>
#include <stdint.h>

typedef struct Error Error;
typedef struct Request Request;
typedef struct Response Response;
typedef struct Output Output;
typedef struct Instance Instance;

Error *TRITONSERVER_ErrorNew(int code, const char *message);
void TRITONSERVER_ErrorDelete(Error *);
Error *TRITONBACKEND_ResponseNew(Response **, Request *);
Error *TRITONBACKEND_ResponseSetStringParameter(Response *, const char *, const char *);
Error *TRITONBACKEND_ResponseOutput(Response *, Output **, const char *, int, const int64_t *, uint32_t);
Error *TRITONBACKEND_OutputBuffer(Output *, void **, uint64_t, int *, int64_t *);
Error *TRITONBACKEND_ResponseSend(Response *, uint32_t, Error *);
Error *TRITONBACKEND_RequestRelease(Request *, uint32_t);

enum { INTERNAL = 1, INVALID = 0, FINAL = 1, ALL = 1 };

static void answer(Request *request) {
  static const int64_t shape[] = {4};
  Response *response;
  Output *output;
  void *buffer;
  int memory = 0;
  int64_t id = 0;
  TRITONBACKEND_ResponseNew(&response, request);
  TRITONBACKEND_ResponseSetStringParameter(response, "name\xff", "value\xff");
  TRITONBACKEND_ResponseOutput(response, &output, "OUT", INVALID, shape, 1);
  TRITONBACKEND_OutputBuffer(output, &buffer, 4, &memory, &id);
  TRITONBACKEND_ResponseSend(response, 0, NULL);
  Error *error = TRITONSERVER_ErrorNew(INTERNAL, "broken\xff");
  TRITONBACKEND_ResponseNew(&response, request);
  TRITONBACKEND_ResponseSend(response, FINAL, error);
  TRITONSERVER_ErrorDelete(error);
  TRITONBACKEND_RequestRelease(request, ALL);
}

Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
  (void)instance;
  for (uint32_t each = 0; each < count; ++each) answer(requests[each]);
  return NULL;
}
