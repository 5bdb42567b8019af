// A stand-in for NVIDIA's driver (libcuda.so.1) of CUDA 12.0, with one GPU that has memory but runs no
// kernel. `cargo xtask gpu-root` starts the programs of target/gpu with it, where nothing else is
// installed. It has only functions that CUDA 12.0 has: the program ends if it calls another one.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoBinaryForGpu = 209,
  kInvalidHandle = 400,
};

typedef int Result;
typedef uint64_t Address;
#define EXPORT __attribute__((visibility("default")))

// What handles point to.
static char context, stream;

EXPORT Result cuInit(unsigned flags) { (void)flags; return kSuccess; }
EXPORT Result cuDriverGetVersion(int *version) { *version = 12000; return kSuccess; }
EXPORT Result cuDeviceGetCount(int *count) { *count = 1; return kSuccess; }
EXPORT Result cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal == 0 ? kSuccess : kInvalidValue; }
EXPORT Result cuDeviceGetName(char *name, int bytes, int device) {
  (void)device;
  if (bytes < 9) return kInvalidValue;
  strcpy(name, "Stub GPU");
  return kSuccess;
}
EXPORT Result cuDeviceGetUuid_v2(void *uuid, int device) { (void)device; memset(uuid, 7, 16); return kSuccess; }
EXPORT Result cuDeviceCanAccessPeer(int *can, int device, int other) { *can = 0; (void)device; (void)other; return kSuccess; }

// The figures of an A100, by the numbers of `CUdevice_attribute`.
EXPORT Result cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  switch (attribute) {
    case 16: *value = 108; break;        // multiprocessors
    case 38: *value = 40 << 20; break;   // bytes of the L2 cache
    case 75: *value = 8; break;          // major compute capability
    case 76: *value = 0; break;          // minor compute capability
    case 97: *value = 163 << 10; break;  // bytes of shared memory that a block can have
    default: return kInvalidValue;
  }
  return kSuccess;
}

EXPORT Result cuDevicePrimaryCtxRetain(void **at, int device) { (void)device; *at = &context; return kSuccess; }
EXPORT Result cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return kSuccess; }
EXPORT Result cuCtxSetCurrent(void *at) { (void)at; return kSuccess; }
EXPORT Result cuCtxSynchronize(void) { return kSuccess; }

static Result allocate(void **at, size_t bytes) {
  *at = bytes ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
  return *at ? kSuccess : bytes ? kOutOfMemory : kInvalidValue;
}
EXPORT Result cuMemAlloc_v2(Address *at, size_t bytes) {
  void *memory = NULL;
  const Result result = allocate(&memory, bytes);
  *at = (Address)(uintptr_t)memory;
  return result;
}
EXPORT Result cuMemFree_v2(Address at) { free((void *)(uintptr_t)at); return kSuccess; }
EXPORT Result cuMemHostAlloc(void **at, size_t bytes, unsigned flags) { (void)flags; return allocate(at, bytes); }
EXPORT Result cuMemFreeHost(void *at) { free(at); return kSuccess; }
EXPORT Result cuMemGetInfo_v2(size_t *left, size_t *all) { *left = *all = (size_t)8 << 30; return kSuccess; }

// Work is done at once.
EXPORT Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *on) {
  (void)on;
  memcpy((void *)(uintptr_t)to, from, bytes);
  return kSuccess;
}
EXPORT Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *on) {
  (void)on;
  memcpy(to, (const void *)(uintptr_t)from, bytes);
  return kSuccess;
}
EXPORT Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *on) {
  (void)on;
  memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
  return kSuccess;
}
EXPORT Result cuMemsetD8_v2(Address at, unsigned char value, size_t bytes) {
  memset((void *)(uintptr_t)at, value, bytes);
  return kSuccess;
}
EXPORT Result cuMemsetD8Async(Address at, unsigned char value, size_t bytes, void *on) {
  (void)on;
  return cuMemsetD8_v2(at, value, bytes);
}

EXPORT Result cuStreamCreate(void **at, unsigned flags) { (void)flags; *at = &stream; return kSuccess; }
EXPORT Result cuStreamDestroy_v2(void *at) { (void)at; return kSuccess; }
EXPORT Result cuStreamSynchronize(void *at) { (void)at; return kSuccess; }
EXPORT Result cuStreamQuery(void *at) { (void)at; return kSuccess; }
EXPORT Result cuStreamWaitEvent(void *at, void *event, unsigned flags) { (void)at; (void)event; (void)flags; return kSuccess; }
// An event is the flags that it was created with.
EXPORT Result cuEventCreate(void **at, unsigned flags) {
  const Result result = allocate(at, sizeof flags);
  if (result == kSuccess) memcpy(*at, &flags, sizeof flags);
  return result;
}
EXPORT Result cuEventDestroy_v2(void *at) { free(at); return kSuccess; }
EXPORT Result cuEventRecord(void *at, void *on) { (void)at; (void)on; return kSuccess; }
EXPORT Result cuEventQuery(void *at) { (void)at; return kSuccess; }
EXPORT Result cuEventSynchronize(void *at) { (void)at; return kSuccess; }
EXPORT Result cuEventElapsedTime(float *milliseconds, void *start, void *end) {
  const unsigned without_timing = 2;
  if ((*(unsigned *)start | *(unsigned *)end) & without_timing) return kInvalidHandle;
  *milliseconds = 0.5f;
  return kSuccess;
}

// There is no code for this GPU, as with machine code of other architectures.
EXPORT Result cuModuleLoadData(void **module, const void *image) { (void)image; *module = NULL; return kNoBinaryForGpu; }

EXPORT Result cuGetErrorName(Result code, const char **name) {
  *name = code == kNoBinaryForGpu ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : code == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
  return kSuccess;
}
EXPORT Result cuGetErrorString(Result code, const char **text) {
  *text = code == kNoBinaryForGpu ? "no kernel image is available for execution on the device" : "an error of the stub driver";
  return kSuccess;
}
