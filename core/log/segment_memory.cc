#include "log/segment_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#if defined(__linux__)
#include <sys/statfs.h>
#endif
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace sparsefleet {
namespace {

constexpr std::size_t kMostMapped = 12;
constexpr std::uint64_t kTouchBytes = 2 << 20;
constexpr std::size_t kStreamedBytes = 4096;
constexpr std::size_t kLine = 64;  // of a cache

// Whether the file system overwrites bytes in place, so that it needs no space for it.
bool OverwritesInPlace([[maybe_unused]] int fd) {
#if defined(__linux__)
  constexpr auto kExt = 0xEF53;
  constexpr auto kXfs = 0x58465342;
  constexpr auto kTmpfs = 0x01021994;
  struct statfs found{};
  if (::fstatfs(fd, &found) != 0) return false;
  return found.f_type == kExt || found.f_type == kXfs || found.f_type == kTmpfs;
#else
  return false;
#endif
}

void Copy(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  if (bytes >= kStreamedBytes) {
    const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
    std::memcpy(to, from, head);
    to += head;
    from += head;
    bytes -= head;
    for (; bytes >= kLine; bytes -= kLine, to += kLine, from += kLine) {
      for (std::size_t i = 0; i < kLine; i += sizeof(__m128i)) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
      }
    }
    _mm_sfence();  // before a reply that another processor may read
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace

SegmentMemory::~SegmentMemory() {
  ::munmap(bytes_, size_);
  ::close(fd_);
}

bool SegmentMemory::Touch(std::uint64_t end) {
  if (end <= touched_) return true;
#if defined(MADV_POPULATE_WRITE)
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = touched_ / page * page;
  const std::uint64_t to = std::min(usable_, std::max(end, begin + kTouchBytes));
  // EINVAL: the system is too old for it, and provides the pages one by one.
  if (::madvise(bytes_ + begin, to - begin, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    return false;
  }
  touched_ = to;
#else
  touched_ = end;
#endif
  return true;
}

bool SegmentMemory::Write(std::uint64_t at, std::span<const iovec> pieces) {
  std::uint64_t end = at;
  for (const iovec& piece : pieces) end += piece.iov_len;
  if (end > usable_ || !Touch(end)) return false;
  for (const iovec& piece : pieces) {
    Copy(bytes_ + at, static_cast<const std::byte*>(piece.iov_base), piece.iov_len);
    at += piece.iov_len;
  }
  return true;
}

std::shared_ptr<SegmentMemory> SegmentMemories::Take(int fd) {
  ReleaseRemoved();
  struct stat found{};
  if (::fstat(fd, &found) != 0) return nullptr;
  const auto size = static_cast<std::uint64_t>(found.st_size);
  auto known = std::ranges::find_if(all_, [&](const auto& one) {
    return one->device_ == found.st_dev && one->inode_ == found.st_ino;
  });
  if (known == all_.end()) {
    if (size == 0 || all_.size() >= kMostMapped || !OverwritesInPlace(fd)) return nullptr;
    const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return nullptr;
    void* bytes = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
    if (bytes == MAP_FAILED) {
      ::close(own);
      return nullptr;
    }
    all_.emplace_back(new SegmentMemory(own, static_cast<std::byte*>(bytes), size));
    known = all_.end() - 1;
    (*known)->device_ = found.st_dev;
    (*known)->inode_ = found.st_ino;
  }
  SegmentMemory& memory = **known;
  memory.usable_ = std::min<std::uint64_t>(memory.size_, size);
  memory.touched_ = std::min(memory.touched_, memory.usable_);
  return *known;
}

void SegmentMemories::ReleaseRemoved() {
  std::erase_if(all_, [](const auto& one) {
    struct stat found{};
    return ::fstat(one->fd_, &found) != 0 || found.st_nlink == 0;
  });
}

}  // namespace sparsefleet
