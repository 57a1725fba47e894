// Counts what the interpreter allocates, in a file that other processes read: objects and their
// parts, but not those of its free lists. Raw memory, which needs no GIL, is not counted.

#include <Python.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

static PyMemAllocatorEx inner[2];
static unsigned long *count;

static void *counted_malloc(void *allocator, size_t size) {
  ++*count;
  PyMemAllocatorEx *to = allocator;
  return to->malloc(to->ctx, size);
}

static void *counted_calloc(void *allocator, size_t number, size_t size) {
  ++*count;
  PyMemAllocatorEx *to = allocator;
  return to->calloc(to->ctx, number, size);
}

static void *counted_realloc(void *allocator, void *block, size_t size) {
  ++*count;
  PyMemAllocatorEx *to = allocator;
  return to->realloc(to->ctx, block, size);
}

static void uncounted_free(void *allocator, void *block) {
  PyMemAllocatorEx *to = allocator;
  to->free(to->ctx, block);
}

// Returns 0, or -1 if the file cannot be mapped. The caller holds the GIL.
int install(const char *path) {
  int file = open(path, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof *count) != 0) return -1;
  void *mapped = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return -1;
  count = mapped;
  const PyMemAllocatorDomain domains[] = {PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ};
  for (int at = 0; at < 2; ++at) {
    PyMem_GetAllocator(domains[at], &inner[at]);
    PyMemAllocatorEx counting = {&inner[at], counted_malloc, counted_calloc, counted_realloc,
                                 uncounted_free};
    PyMem_SetAllocator(domains[at], &counting);
  }
  return 0;
}
