#include "transport/lane_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace sparsefleet {
namespace {

// Format: docs/wire_format.md.
constexpr std::size_t kHeadBytes = 4096;
constexpr std::size_t kCountersStride = 128;
constexpr std::size_t kWaitsOffset = 64;  // on a separate cache line
constexpr std::uint64_t kMaxCapacity = 1u << 30;

std::size_t FileBytes(std::size_t capacity) { return kHeadBytes + 2 * capacity; }

}  // namespace

LaneMemory::LaneMemory(LaneMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      base_(std::exchange(other.base_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)) {}

LaneMemory& LaneMemory::operator=(LaneMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(base_, other.base_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

LaneMemory::~LaneMemory() {
  if (base_ != nullptr) ::munmap(base_, FileBytes(capacity_));
}

LaneRing LaneMemory::Ring(std::size_t index) const {
  std::byte* const counters = base_ + index * kCountersStride;
  return {{base_ + kHeadBytes + index * capacity_, capacity_},
          reinterpret_cast<std::uint64_t*>(counters),
          reinterpret_cast<std::uint32_t*>(counters + kWaitsOffset)};
}

Result<LaneMemory> LaneMemory::Map(OwnedSocket fd, std::size_t capacity) {
  void* const base =
      ::mmap(nullptr, FileBytes(capacity), PROT_READ | PROT_WRITE, MAP_SHARED, fd.fd(), 0);
  if (base == MAP_FAILED) {
    return Status(Code::kIo, "cannot map shared memory: " + ErrnoText(errno));
  }
  LaneMemory memory;
  memory.fd_ = std::move(fd);
  memory.base_ = static_cast<std::byte*>(base);
  memory.capacity_ = capacity;
  return memory;
}

#ifdef __linux__

Result<LaneMemory> LaneMemory::Create(std::size_t capacity) {
  OwnedSocket fd(::memfd_create("sparsefleet-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.fd() < 0) return Status(Code::kIo, "cannot create shared memory: " + ErrnoText(errno));
  if (::ftruncate(fd.fd(), static_cast<off_t>(FileBytes(capacity))) != 0 ||
      ::fcntl(fd.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Status(Code::kIo, "cannot create shared memory: " + ErrnoText(errno));
  }
  return Map(std::move(fd), capacity);
}

Result<LaneMemory> LaneMemory::Open(OwnedSocket fd, std::uint64_t capacity) {
  struct stat file{};
  const int seals = ::fcntl(fd.fd(), F_GET_SEALS);
  const bool fits = capacity > 0 && capacity % 4096 == 0 && capacity <= kMaxCapacity;
  if (!fits || seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd.fd(), &file) != 0 ||
      static_cast<std::uint64_t>(file.st_size) != FileBytes(capacity)) {
    return Status(Code::kProtocol, "the peer's shared memory of " + std::to_string(capacity) +
                                       " bytes per direction is not sealed or has the wrong size");
  }
  return Map(std::move(fd), capacity);
}

#else

Result<LaneMemory> LaneMemory::Create(std::size_t) {
  return Status(Code::kIo, "this system has no memory files");
}

Result<LaneMemory> LaneMemory::Open(OwnedSocket, std::uint64_t) {
  return Status(Code::kIo, "this system has no memory files");
}

#endif

}  // namespace sparsefleet
