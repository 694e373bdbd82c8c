// The log's system calls, replaceable so that tests can make them fail. Header only.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdio>

namespace sparsefleet {

// Each function is the system call of that name: -1 and errno on failure. Thread-safe.
class FileCalls {
 public:
  virtual ~FileCalls() = default;
  virtual int Open(const char* path, int flags, int mode) { return ::open(path, flags, mode); }
  virtual ssize_t Writev(int fd, const iovec* pieces, int count) {
    return ::writev(fd, pieces, count);
  }
  virtual int Truncate(int fd, off_t size) { return ::ftruncate(fd, size); }
  // Flushes the data and the metadata needed to read it.
  virtual int Sync(int fd) {
#if defined(__APPLE__)
    return ::fcntl(fd, F_FULLFSYNC);
#else
    return ::fdatasync(fd);
#endif
  }
  virtual int Rename(const char* from, const char* to) { return std::rename(from, to); }
  virtual int Remove(const char* path) { return ::unlink(path); }

  static FileCalls& System() {
    static FileCalls calls;
    return calls;
  }
};

}  // namespace sparsefleet
