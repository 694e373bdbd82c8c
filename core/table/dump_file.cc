#include "table/dump_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "table/crc32c.h"
#include "table/table_spec.h"

namespace sparsefleet {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is written as it lies");

constexpr char kMagic[8] = {'S', 'F', 'L', 'T', 'A', 'B', 'L', 'E'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kBlockBytes = 1 << 20;
constexpr std::uint64_t kMaxBlockBytes = 64 << 20;

// The header up to the name, as it lies in the file.
struct FixedHeader {
  char magic[8];
  std::uint32_t version;
  std::uint8_t kind;
  std::uint8_t optimizer;
  std::uint8_t counters;
  std::uint8_t zero;
  std::uint32_t dim;
  std::uint32_t state_dim;
  std::uint32_t index;
  std::uint32_t num_servers;
  std::uint32_t size[2];  // low word first; as one number it would be aligned to eight
  std::uint32_t begin[2];
  std::uint32_t end[2];
  std::uint32_t name_bytes;
};
static_assert(sizeof(FixedHeader) == 60);

void Split(std::uint64_t number, std::uint32_t (&words)[2]) {
  words[0] = static_cast<std::uint32_t>(number);
  words[1] = static_cast<std::uint32_t>(number >> 32);
}
std::uint64_t Join(const std::uint32_t (&words)[2]) {
  return words[0] | static_cast<std::uint64_t>(words[1]) << 32;
}

template <typename T>
std::span<const std::byte> BytesOf(const std::vector<T>& items) {
  return std::as_bytes(std::span(items));
}
template <typename T>
std::span<const std::byte> BytesOfOne(const T& item) {
  return std::as_bytes(std::span(&item, 1));
}

std::uint32_t NumCounters(std::uint8_t flags) {
  return static_cast<std::uint32_t>(std::popcount(flags));
}

}  // namespace

std::uint64_t DumpHeader::row_bytes() const {
  return (dense ? 0 : sizeof(Key)) +
         sizeof(float) * (std::uint64_t{NumCounters(counters)} + dim + state_dim);
}

DumpWriter::DumpWriter(std::string path, std::string temporary, File file, DumpHeader header)
    : path_(std::move(path)),
      temporary_(std::move(temporary)),
      file_(std::move(file)),
      header_(std::move(header)) {}

DumpWriter::DumpWriter(DumpWriter&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      file_(std::move(other.file_)),
      header_(std::move(other.header_)),
      total_(other.total_) {}

Result<DumpWriter> DumpWriter::Create(std::string path, DumpHeader header) {
  std::string temporary = path + ".XXXXXX";
  const int descriptor = ::mkstemp(temporary.data());
  if (descriptor < 0) {
    return Status(Code::kIo, "cannot create '" + path + "': " + std::strerror(errno));
  }
  (void)::fchmod(descriptor, 0644);
  File file(::fdopen(descriptor, "wb"));
  if (!file) {
    ::close(descriptor);
    ::unlink(temporary.c_str());
    return Status(Code::kIo, "cannot open '" + temporary + "': " + std::strerror(errno));
  }
  DumpWriter writer(std::move(path), std::move(temporary), std::move(file), std::move(header));
  const DumpHeader& h = writer.header_;
  FixedHeader fixed{};
  std::copy(std::begin(kMagic), std::end(kMagic), fixed.magic);
  fixed.version = kVersion;
  fixed.kind = h.dense ? 1 : 0;
  fixed.optimizer = h.optimizer;
  fixed.counters = h.counters;
  fixed.dim = h.dim;
  fixed.state_dim = h.state_dim;
  fixed.index = h.index;
  fixed.num_servers = h.num_servers;
  Split(h.size, fixed.size);
  Split(h.begin, fixed.begin);
  Split(h.end, fixed.end);
  fixed.name_bytes = static_cast<std::uint32_t>(h.name.size());
  const std::uint32_t crc = Crc32c(std::as_bytes(std::span(h.name)), Crc32c(BytesOfOne(fixed)));
  Status status = writer.WriteBytes(&fixed, sizeof(fixed));
  if (status.ok()) status = writer.WriteBytes(h.name.data(), h.name.size());
  if (status.ok()) status = writer.WriteBytes(&crc, sizeof(crc));
  if (!status.ok()) return status;
  return writer;
}

DumpWriter::~DumpWriter() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

std::uint64_t DumpWriter::rows_per_block() const {
  return std::max<std::uint64_t>(kBlockBytes / header_.row_bytes(), 1);
}

Status DumpWriter::IoError(const std::string& what) const {
  return {Code::kIo, "cannot " + what + " '" + temporary_ + "': " + std::strerror(errno)};
}

Status DumpWriter::WriteBytes(const void* bytes, std::size_t size) {
  if (size == 0 || std::fwrite(bytes, 1, size, file_.get()) == size) return Status::Ok();
  return IoError("write");
}

Status DumpWriter::Write(const RowBatch& block) {
  const auto rows =
      static_cast<std::uint32_t>(header_.dense ? block.values.size() : block.keys.size());
  if (rows == 0) return Status::Ok();
  std::uint32_t crc = Crc32c(BytesOfOne(rows));
  const std::span<const std::byte> parts[] = {BytesOf(block.keys), BytesOf(block.counters),
                                              BytesOf(block.values), BytesOf(block.state)};
  for (const auto part : parts) crc = Crc32c(part, crc);
  Status status = WriteBytes(&rows, sizeof(rows));
  if (status.ok()) status = WriteBytes(&crc, sizeof(crc));
  for (const auto part : parts) {
    if (status.ok()) status = WriteBytes(part.data(), part.size());
  }
  total_ += rows;
  return status;
}

Status DumpWriter::Finish() {
  const std::uint32_t none = 0;
  const std::uint32_t crc = Crc32c(BytesOfOne(total_), Crc32c(BytesOfOne(none)));
  Status status = WriteBytes(&none, sizeof(none));
  if (status.ok()) status = WriteBytes(&crc, sizeof(crc));
  if (status.ok()) status = WriteBytes(&total_, sizeof(total_));
  if (!status.ok()) return status;
  if (std::fflush(file_.get()) != 0) return IoError("write");
  if (::fsync(::fileno(file_.get())) != 0) return IoError("sync");
  return Status::Ok();
}

Status DumpWriter::Publish() {
  file_.reset();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return IoError("rename");
  temporary_.clear();
  return Status::Ok();
}

Result<DumpReader> DumpReader::Open(std::string path) {
  File file(std::fopen(path.c_str(), "rb"));
  if (!file) {
    const Code code = errno == ENOENT ? Code::kNotFound : Code::kIo;
    return Status(code, "cannot open '" + path + "': " + std::strerror(errno));
  }
  DumpReader reader(std::move(path), std::move(file));
  if (Status status = reader.ReadHeader(); !status.ok()) return status;
  return reader;
}

Status DumpReader::Corrupt(const std::string& what) const {
  return {Code::kCorrupt, "'" + path_ + "': " + what};
}

Status DumpReader::ReadBytes(void* to, std::size_t size, std::uint32_t& crc) {
  if (size == 0) return Status::Ok();
  if (std::fread(to, 1, size, file_.get()) != size) {
    if (std::ferror(file_.get()) == 0) return Corrupt("ends too early");
    return {Code::kIo, "cannot read '" + path_ + "': " + std::strerror(errno)};
  }
  crc = Crc32c({static_cast<const std::byte*>(to), size}, crc);
  return Status::Ok();
}

Status DumpReader::ReadHeader() {
  FixedHeader fixed{};
  std::uint32_t crc = 0;
  if (Status status = ReadBytes(&fixed, sizeof(fixed), crc); !status.ok()) return status;
  if (!std::equal(std::begin(kMagic), std::end(kMagic), fixed.magic)) {
    return Corrupt("is not a table dump");
  }
  if (fixed.version != kVersion) {
    return Corrupt("has format version " + std::to_string(fixed.version) + ", this program reads " +
                   std::to_string(kVersion));
  }
  if (fixed.name_bytes > kMaxTableNameBytes) return Corrupt("has a damaged header");
  header_.name.resize(fixed.name_bytes);
  if (Status status = ReadBytes(header_.name.data(), fixed.name_bytes, crc); !status.ok()) {
    return status;
  }
  const std::uint32_t wanted = crc;
  std::uint32_t found = 0;
  if (Status status = ReadBytes(&found, sizeof(found), crc); !status.ok()) return status;
  if (found != wanted) return Corrupt("has a damaged header (checksum)");
  header_.dense = fixed.kind == 1;
  header_.optimizer = fixed.optimizer;
  header_.counters = fixed.counters;
  header_.dim = fixed.dim;
  header_.state_dim = fixed.state_dim;
  header_.index = fixed.index;
  header_.num_servers = fixed.num_servers;
  header_.size = Join(fixed.size);
  header_.begin = Join(fixed.begin);
  header_.end = Join(fixed.end);
  // Widths a valid checksum could still carry, but no table has.
  if (fixed.kind > 1 || header_.dim == 0 || header_.dim > kMaxDim ||
      header_.state_dim > 4 * kMaxDim) {
    return Corrupt("has an impossible header");
  }
  return Status::Ok();
}

Result<bool> DumpReader::Next(RowBatch& out) {
  out.clear();
  std::uint32_t rows = 0;
  std::uint32_t wanted = 0;
  std::uint32_t crc = 0;
  std::uint32_t unused = 0;
  if (Status status = ReadBytes(&rows, sizeof(rows), crc); !status.ok()) return status;
  if (Status status = ReadBytes(&wanted, sizeof(wanted), unused); !status.ok()) return status;
  if (rows * header_.row_bytes() > kMaxBlockBytes) return Corrupt("has a damaged block length");
  if (rows == 0) {
    std::uint64_t total = 0;
    if (Status status = ReadBytes(&total, sizeof(total), crc); !status.ok()) return status;
    if (crc != wanted) return Corrupt("has a damaged end record (checksum)");
    if (total != total_) {
      return Corrupt("says " + std::to_string(total) + " rows, holds " + std::to_string(total_));
    }
    if (std::fgetc(file_.get()) != EOF) return Corrupt("goes on after its end record");
    return false;
  }
  out.keys.resize(header_.dense ? 0 : rows);
  out.counters.resize(std::size_t{rows} * NumCounters(header_.counters));
  out.values.resize(std::size_t{rows} * header_.dim);
  out.state.resize(std::size_t{rows} * header_.state_dim);
  Status status = ReadBytes(out.keys.data(), out.keys.size() * sizeof(Key), crc);
  const auto read_words = [&](auto& words) {
    if (status.ok()) status = ReadBytes(words.data(), words.size() * sizeof(words[0]), crc);
  };
  read_words(out.counters);
  read_words(out.values);
  read_words(out.state);
  if (!status.ok()) return status;
  if (crc != wanted) {
    return Corrupt("has a damaged block (checksum) after row " + std::to_string(total_));
  }
  total_ += rows;
  return true;
}

Status SyncDirectory(const std::string& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && ::fsync(descriptor) == 0;
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (synced) return Status::Ok();
  return {Code::kIo, "cannot sync directory '" + directory + "': " + std::strerror(error)};
}

}  // namespace sparsefleet
