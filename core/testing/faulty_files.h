// File calls that fail on purpose, and a temporary directory. Header only.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>

#include "log/file_calls.h"

namespace sparsefleet::testing {

// Thread-safe.
class FaultyFiles : public FileCalls {
 public:
  // After this many more bytes a write is cut short, and the next one fails with `error`.
  void FailWritesAfter(std::uint64_t bytes, int error) {
    std::lock_guard lock(mutex_);
    room_ = bytes;
    write_error_ = error;
  }
  void Heal() {
    std::lock_guard lock(mutex_);
    room_ = UINT64_MAX;
    truncate_error_ = 0;
    sync_error_ = 0;
  }
  // Each write accepts at most this many bytes.
  void ShortenWrites(std::size_t bytes) { longest_ = bytes; }
  void FailTruncates(int error) { truncate_error_ = error; }
  void FailSyncs(int error) { sync_error_ = error; }
  int num_syncs() const { return num_syncs_; }

  ssize_t Writev(int fd, const iovec* pieces, int count) override {
    std::lock_guard lock(mutex_);
    std::size_t allowed = static_cast<std::size_t>(std::min<std::uint64_t>(room_, longest_));
    if (room_ == 0) {
      errno = write_error_;
      return -1;
    }
    ssize_t total = 0;
    for (int i = 0; i < count && allowed > 0; ++i) {
      const std::size_t part = std::min(allowed, pieces[i].iov_len);
      const ssize_t written = ::write(fd, pieces[i].iov_base, part);
      if (written < 0) return total > 0 ? total : written;
      total += written;
      allowed -= static_cast<std::size_t>(written);
      if (part < pieces[i].iov_len) break;
    }
    if (room_ != UINT64_MAX) room_ -= static_cast<std::uint64_t>(total);
    return total;
  }
  int Truncate(int fd, off_t size) override {
    if (truncate_error_ == 0) return FileCalls::Truncate(fd, size);
    errno = truncate_error_;
    return -1;
  }
  int Sync(int fd) override {
    ++num_syncs_;
    if (sync_error_ == 0) return FileCalls::Sync(fd);
    errno = sync_error_;
    return -1;
  }

 private:
  std::mutex mutex_;
  std::uint64_t room_ = UINT64_MAX;
  std::size_t longest_ = SIZE_MAX;
  int write_error_ = ENOSPC;
  std::atomic<int> truncate_error_ = 0;
  std::atomic<int> sync_error_ = 0;
  std::atomic<int> num_syncs_ = 0;
};

// A directory that is removed together with this object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "sparsefleet-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace sparsefleet::testing
