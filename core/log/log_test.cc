#include "log/log.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "log/crc32c.h"
#include "log/group_commit.h"
#include "testing/check.h"
#include "testing/faulty_files.h"

namespace sparsefleet::testing {
namespace {

constexpr std::uint32_t kEnd = 99;

struct Seen {
  bool is_snapshot;
  std::uint64_t lsn;
  std::uint32_t type;
  std::string text;
  bool operator==(const Seen&) const = default;
};

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

Result<std::uint64_t> Append(Log& log, const std::string& text, std::uint32_t type = 7) {
  // In two pieces, one of them sometimes empty.
  const std::size_t half = text.size() / 2;
  auto* first = const_cast<char*>(text.data());
  const iovec pieces[] = {{first, half}, {first + half, text.size() - half}};
  return log.Append(type, pieces);
}

struct Recovery {
  std::unique_ptr<LogDirectory> directory;
  Recovered found;
  std::vector<Seen> seen;
};

Recovery Recover(const std::string& path, FileCalls& calls = FileCalls::System()) {
  Recovery recovery;
  auto directory = LogDirectory::Open(path, 0, calls);
  Require(directory.ok(), directory.status().message());
  recovery.directory = std::move(directory).value();
  auto found = recovery.directory->Recover(kEnd, [&](bool is_snapshot, const Record& record) {
    Expect(reinterpret_cast<std::uintptr_t>(record.payload.data()) % 8 == 0);
    recovery.seen.push_back(
        {is_snapshot, record.lsn, record.type,
         std::string(reinterpret_cast<const char*>(record.payload.data()), record.payload.size())});
    return Status::Ok();
  });
  Require(found.ok(), found.status().message());
  recovery.found = found.value();
  return recovery;
}

std::unique_ptr<Log> Begin(const Recovery& from, LogOptions options = {}) {
  auto log = Log::Begin(*from.directory, from.found.next_lsn, options);
  Require(log.ok(), log.status().message());
  return std::move(log).value();
}

std::vector<std::string> FilesIn(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.path().filename() != "LOCK") names.push_back(entry.path().string());
  }
  std::ranges::sort(names);
  return names;
}

const Test kKnownSums("checksums match RFC 3720, in hardware and in portable code", [] {
  const std::string zeros(32, '\0');
  ExpectEqual(Crc32c(0, BytesOf(zeros)), 0x8a9136aau);
  ExpectEqual(Crc32c(0, BytesOf(std::string(32, '\xff'))), 0x62a8ab43u);
  ExpectEqual(Crc32c(0, BytesOf(std::string("123456789"))), 0xe3069283u);
  std::mt19937 random(1);
  for (std::size_t size = 0; size < 40000; size = size * 5 / 4 + 1) {
    std::string text(size, ' ');
    for (char& letter : text) letter = static_cast<char>(random());
    const std::uint32_t portable = Crc32cPortable(0, BytesOf(text));
    ExpectEqual(Crc32c(0, BytesOf(text)), portable);
    const std::size_t cut = size / 3;
    const std::uint32_t begun = Crc32c(0, BytesOf(text).first(cut));
    ExpectEqual(Crc32c(begun, BytesOf(text).subspan(cut)), portable);
  }
});

const Test kRecovers("records come back in order, across segments and restarts", [] {
  const TemporaryDirectory place;
  std::vector<Seen> wanted;
  for (int life = 0; life < 3; ++life) {
    const Recovery before = Recover(place.path());
    ExpectEqual(before.seen.size(), wanted.size());
    Expect(before.seen == wanted);
    const auto log = Begin(before, {.owner = 5, .segment_bytes = 200});
    for (int i = 0; i < 20; ++i) {
      const std::string text(static_cast<std::size_t>(i * 7 % 40), static_cast<char>('a' + i));
      auto lsn = Append(*log, text, static_cast<std::uint32_t>(i));
      Require(lsn.ok(), lsn.status().message());
      wanted.push_back({false, lsn.value(), static_cast<std::uint32_t>(i), text});
    }
  }
  Expect(FilesIn(place.path()).size() > 5, "segments have a bounded size");
  ExpectEqual(Recover(place.path()).found.owner, 5u);
});

const Test kTorn("recovery stops at a record torn at any byte, and cuts it off", [] {
  const TemporaryDirectory place;
  std::string segment;
  std::size_t whole = 0;
  {
    const Recovery empty = Recover(place.path());
    const auto log = Begin(empty);
    Require(Append(*log, "first").ok());
    segment = FilesIn(place.path()).front();
    whole = std::filesystem::file_size(segment);
    Require(Append(*log, "the second one").ok());
  }
  const std::size_t all = std::filesystem::file_size(segment);
  std::vector<char> bytes(all);
  std::ifstream(segment, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(all));
  for (std::size_t end = whole; end < all; ++end) {
    std::ofstream(segment, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(end));
    const Recovery found = Recover(place.path());
    ExpectEqual(found.seen.size(), 1u);
    ExpectEqual(found.found.torn_bytes, end - whole);
    ExpectEqual(std::filesystem::file_size(segment), whole);
  }
  for (std::size_t at = whole; at < all - 2; ++at) {  // the last bytes are padding
    auto flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    std::ofstream(segment, std::ios::binary | std::ios::trunc)
        .write(flipped.data(), static_cast<std::streamsize>(all));
    ExpectEqual(Recover(place.path()).seen.size(), 1u);
  }
});

const Test kHole("a damaged record with segments after it is an error, not the end", [] {
  const TemporaryDirectory place;
  {
    const Recovery empty = Recover(place.path());
    const auto log = Begin(empty, {.segment_bytes = 64});
    for (int i = 0; i < 6; ++i) Require(Append(*log, "some text of a record").ok());
  }
  const auto files = FilesIn(place.path());
  std::fstream file(files[1], std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(kFileHeadBytes + kRecordHeadBytes);
  file.put('#');
  file.close();
  auto directory = LogDirectory::Open(place.path(), 0);
  Require(directory.ok());
  const auto visit = [](bool, const Record&) { return Status::Ok(); };
  ExpectEqual(directory.value()->Recover(kEnd, visit).status().code(), Code::kCorrupt);
  std::filesystem::remove(files[1]);
  ExpectEqual(directory.value()->Recover(kEnd, visit).status().code(), Code::kCorrupt);
});

const Test kSnapshot("a snapshot replaces the records before it, once it is committed", [] {
  const TemporaryDirectory place;
  {
    const Recovery empty = Recover(place.path());
    const auto log = Begin(empty, {.owner = 3});
    for (int i = 0; i < 3; ++i) Require(Append(*log, "old").ok());
    auto lsn = log->Rotate();
    Require(lsn.ok());
    ExpectEqual(lsn.value(), 4u);
    {
      auto given_up = SnapshotWriter::Begin(*empty.directory, 3, lsn.value());
      Require(given_up.ok());
      Require(given_up.value()->Append(1, {}).ok());
    }
    ExpectEqual(FilesIn(place.path()).size(), 2u);
    Require(Append(*log, "new").ok());
    auto snapshot = SnapshotWriter::Begin(*empty.directory, 3, lsn.value());
    Require(snapshot.ok());
    std::string state = "state";
    const iovec piece{state.data(), state.size()};
    Require(snapshot.value()->Append(2, {&piece, 1}).ok());
    Require(snapshot.value()->Commit(kEnd, true).ok());
    ExpectEqual(FilesIn(place.path()).size(), 3u);  // and a spare segment
  }
  const Recovery found = Recover(place.path());
  Expect(found.seen == std::vector<Seen>{{true, 4, 2, "state"}, {false, 4, 7, "new"}});
  ExpectEqual(found.found.next_lsn, 5u);
  // A snapshot that lost its end under its final name is not skipped.
  const auto files = FilesIn(place.path());
  std::filesystem::resize_file(files.back(), std::filesystem::file_size(files.back()) - 8);
  ExpectEqual(found.directory->Recover(kEnd, [](bool, const Record&) { return Status::Ok(); })
                  .status()
                  .code(),
              Code::kCorrupt);
});

// Writes records with occasional snapshots in between; at any moment a recovery sees all records
// since the last snapshot.
void ReuseSegments(bool is_synced) {
  const TemporaryDirectory place;
  Recovery start = Recover(place.path());
  LogOptions options;
  options.segment_bytes = 400;
  options.is_synced = is_synced;
  auto log = Begin(start, options);
  std::mt19937 random(5);
  std::uint64_t cut = 1;
  std::size_t num_spares = 0;
  for (int number = 1; number <= 300; ++number) {
    const std::string text(8 * (1 + random() % 12), static_cast<char>('a' + number % 26));
    ExpectEqual(RequireOk(Append(*log, text)), static_cast<std::uint64_t>(number));
    if (number % 40 == 0) {
      cut = RequireOk(log->Rotate());
      auto snapshot = RequireOk(SnapshotWriter::Begin(*start.directory, options.owner, cut));
      RequireOk(snapshot->Commit(kEnd, false));
      num_spares = RequireOk(start.directory->List()).spares.size();
      Expect(num_spares > 0, "no segment is kept");
    }
    if (number % 7 != 0) continue;
    // A copy, as it would be found after the process was killed here.
    const TemporaryDirectory copy;
    std::filesystem::copy(place.path(), copy.path(), std::filesystem::copy_options::recursive);
    std::filesystem::remove(copy.path() + "/LOCK");
    const Recovery found = Recover(copy.path());
    ExpectEqual(found.found.next_lsn, static_cast<std::uint64_t>(number) + 1);
    ExpectEqual(found.seen.size(), static_cast<std::size_t>(number + 1) - cut);
    Expect(found.seen.empty() ||
           found.seen.back().text.starts_with(static_cast<char>('a' + number % 26)));
    // Once more: the torn end is gone.
    ExpectEqual(RequireOk(found.directory->List()).spares.size(), std::size_t{0});
  }
  Expect(RequireOk(start.directory->List()).spares.size() < num_spares, "none was used again");
}

const Test kReused("segments are reused after snapshots, and their old records are not read",
                   [] { ReuseSegments(true); });
const Test kReusedMemory("segments that are reused through memory are read in the same way",
                         [] { ReuseSegments(false); });

#if defined(__linux__)
std::size_t NumOpenFiles() {
  std::size_t found = 0;
  for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++found;
  }
  return found;
}

const Test kClosed("a log that is never synced keeps no ended segment open", [] {
  const TemporaryDirectory place;
  const Recovery start = Recover(place.path());
  LogOptions options;
  options.segment_bytes = 400;
  options.is_synced = false;
  auto log = Begin(start, options);
  const std::size_t before = NumOpenFiles();
  for (int segments = 0; segments < 200; ++segments) {
    RequireOk(Append(*log, std::string(400, 'x')));
    // Obsolete segments are removed, or reused.
    if (segments % 50 != 0) continue;
    auto snapshot = RequireOk(SnapshotWriter::Begin(*start.directory, 1, RequireOk(log->Rotate())));
    RequireOk(snapshot->Commit(kEnd, false));
  }
  const std::size_t num_spares = RequireOk(start.directory->List()).spares.size();
  Expect(NumOpenFiles() <= before + num_spares + 40, std::to_string(NumOpenFiles()) + " files");
});
#endif

// The copy ends in the middle of what the file had, then at its end, then behind it; a failed write
// behind it cuts the file off.
const Test kMemoryEnds("a reused segment grows beyond its old size, also after a failed write", [] {
  const TemporaryDirectory place;
  FaultyFiles files;
  std::vector<std::string> texts;
  {
    const Recovery start = Recover(place.path(), files);
    LogOptions options;
    options.segment_bytes = 100'000;
    options.is_synced = false;
    auto log = Begin(start, options);
    RequireOk(Append(*log, std::string(20'000, 'o')));
    const std::uint64_t cut = RequireOk(log->Rotate());
    auto snapshot = RequireOk(SnapshotWriter::Begin(*start.directory, options.owner, cut));
    RequireOk(snapshot->Commit(kEnd, false));
    RequireOk(log->Rotate());  // nothing is written yet, so the segment stays
    RequireOk(Append(*log, "starts a new one"));
    RequireOk(log->Rotate());
    texts.emplace_back("starts a new one");
    const auto append = [&](std::size_t bytes, char letter) {
      texts.emplace_back(bytes, letter);
      RequireOk(Append(*log, texts.back()));
    };
    append(9'000, 'a');
    append(10'900, 'b');
    append(30, 'c');
    append(30'000, 'd');
    append(8, 'e');
    files.FailWritesAfter(100, EIO);
    Expect(!Append(*log, std::string(5'000, 'f')).ok());
    files.Heal();
    append(5'000, 'g');
    append(12, 'h');
    ExpectEqual(RequireOk(start.directory->List()).spares.size(), std::size_t{0});
  }
  std::vector<std::string> found;
  for (const auto& seen : Recover(place.path()).seen) found.push_back(seen.text);
  Expect(found == texts);
});

const Test kHalfReused("a reused segment that still has its old header holds nothing", [] {
  const TemporaryDirectory place;
  Recovery start = Recover(place.path());
  auto log = Begin(start);
  RequireOk(Append(*log, "first"));
  log.reset();
  std::filesystem::copy(start.directory->SegmentPath(1), start.directory->SegmentPath(2));
  start.directory.reset();
  const Recovery found = Recover(place.path());
  ExpectEqual(found.found.next_lsn, std::uint64_t{2});
  ExpectEqual(found.seen.size(), std::size_t{1});
});

// The names of spares, finished or not.
std::vector<std::string> SparesIn(const std::string& path) {
  std::vector<std::string> names;
  for (const std::string& file : FilesIn(path)) {
    if (file.find("/spare") != std::string::npos) names.push_back(file);
  }
  return names;
}

// The records that a process would find which takes over from one that was killed now.
std::vector<Seen> RecoverCopy(const std::string& path) {
  const TemporaryDirectory copy;
  std::filesystem::copy(path, copy.path(), std::filesystem::copy_options::recursive);
  std::filesystem::remove(copy.path() + "/LOCK");
  const Recovery found = Recover(copy.path());
  Expect(SparesIn(copy.path()).empty(), "a spare is left");
  return found.seen;
}

const Test kPrepared(
    "the next segment is prepared before it is needed, and read like any other", [] {
      const TemporaryDirectory place;
      Recovery start = Recover(place.path());
      LogOptions options;
      options.segment_bytes = 300'000;
      options.prepares_segments = true;
      auto log = Begin(start, options);
      std::uint64_t num_records = 0;
      std::uint64_t num_prepared = 0;
      for (std::uint64_t segments = 1; segments <= 4; ++segments) {
        Expect(SparesIn(place.path()).empty(), "a spare was prepared too early");
        while (log->tail().bytes < options.segment_bytes / 4) {
          ExpectEqual(RequireOk(Append(*log, std::string(10'000, 'x'))), ++num_records);
        }
        while (RequireOk(start.directory->List()).spares.empty()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        ExpectEqual(RecoverCopy(place.path()).size(), num_records);
        const std::uint64_t segment = log->tail().segment;
        while (log->tail().segment == segment) {
          ExpectEqual(RequireOk(Append(*log, std::string(10'000, 'y'))), ++num_records);
        }
        const auto file = start.directory->SegmentPath(log->tail().segment);
        if (std::filesystem::file_size(file) == options.segment_bytes) ++num_prepared;
        ExpectEqual(RecoverCopy(place.path()).size(), num_records);
      }
      ExpectEqual(num_prepared, 4u);
    });

const Test kHalfPrepared("a prepared segment without a header of its own holds nothing", [] {
  const TemporaryDirectory place;
  Recovery start = Recover(place.path());
  auto log = Begin(start);
  RequireOk(Append(*log, "first"));
  log.reset();
  Require(start.directory->PrepareSpare(1, 100'000, [] { return false; }));
  Require(start.directory->TakeSpare(start.directory->SegmentPath(2)));
  start.directory.reset();
  const Recovery found = Recover(place.path());
  ExpectEqual(found.found.next_lsn, std::uint64_t{2});
  ExpectEqual(found.seen.size(), std::size_t{1});
});

const Test kZeroHead("a prepared segment of which a power loss left only zeros holds nothing", [] {
  const TemporaryDirectory place;
  Recovery start = Recover(place.path());
  auto log = Begin(start);
  RequireOk(Append(*log, "first"));
  log.reset();
  std::ofstream(start.directory->SegmentPath(2), std::ios::binary) << std::string(100'000, '\0');
  start.directory.reset();
  const Recovery found = Recover(place.path());
  ExpectEqual(found.found.next_lsn, std::uint64_t{2});
  ExpectEqual(found.seen.size(), std::size_t{1});
});

const Test kSpareMakesRoom("a full disk takes the space of spare segments", [] {
  const TemporaryDirectory place;
  FaultyFiles files;
  Recovery start = Recover(place.path(), files);
  auto log = Begin(start);
  Require(start.directory->PrepareSpare(1, 100'000, [] { return false; }));
  files.FailWritesAfter(0, ENOSPC);
  RequireOk(Append(*log, "held"));
  Expect(SparesIn(place.path()).empty(), "the spare is left");
  ExpectEqual(log->num_held(), std::size_t{1});
  files.Heal();
  Expect(log->WriteHeld().ok());
});

const Test kNotPrepared("a spare that is abandoned or does not fit leaves nothing", [] {
  const TemporaryDirectory place;
  FaultyFiles files;
  const Recovery start = Recover(place.path(), files);
  int num_calls = 0;
  Expect(!start.directory->PrepareSpare(1, 1'000'000, [&] { return ++num_calls == 3; }));
  ExpectEqual(num_calls, 3);
  Expect(SparesIn(place.path()).empty());
  for (const std::uint64_t room : {10u, 200'000u}) {
    files.FailWritesAfter(room, ENOSPC);
    Expect(!start.directory->PrepareSpare(1, 1'000'000, [] { return false; }));
    Expect(SparesIn(place.path()).empty());
  }
  files.Heal();
  Expect(!start.directory->PrepareSpare(1, 1ull << 60, [] { return false; }), "no space for it");
  Expect(SparesIn(place.path()).empty());
  Expect(start.directory->PrepareSpare(1, 1'000'000, [] { return false; }));
  Expect(start.directory->PrepareSpare(1, 1'000'000, [] { return true; }), "there is one");
  ExpectEqual(SparesIn(place.path()).size(), 1u);
});

const Test kLocked("a directory belongs to one process until that releases it", [] {
  const TemporaryDirectory place;
  auto first = LogDirectory::Open(place.path(), 0);
  Require(first.ok());
  auto second = LogDirectory::Open(place.path(), 0.05);
  ExpectEqual(second.status().code(), Code::kIo);
  Expect(second.status().message().find(std::to_string(::getpid())) != std::string::npos);
  first.value().reset();
  Expect(LogDirectory::Open(place.path(), 0).ok());
});

const Test kShort("short writes are continued, failed ones leave no trace", [] {
  const TemporaryDirectory place;
  FaultyFiles files;
  files.ShortenWrites(5);
  {
    const Recovery empty = Recover(place.path(), files);
    const auto log = Begin(empty);
    Require(Append(*log, "a record in many writes").ok());
    for (std::uint64_t room = 0; room < 60; room += 7) {
      files.FailWritesAfter(room, EIO);
      auto failed = Append(*log, "a record of more than sixty bytes, too large for any room");
      ExpectEqual(failed.status().code(), Code::kIo);
      Expect(!log->is_broken());
    }
    files.Heal();
    auto lsn = Append(*log, "after");
    Require(lsn.ok());
    ExpectEqual(lsn.value(), 2u);
  }
  const Recovery found = Recover(place.path());
  ExpectEqual(found.seen.size(), 2u);
  ExpectEqual(found.seen.back().text, std::string("after"));
  ExpectEqual(found.found.torn_bytes, 0u);
});

const Test kFull("records that find a full disk are held and written in order when there is space",
                 [] {
                   const TemporaryDirectory place;
                   FaultyFiles files;
                   {
                     const Recovery empty = Recover(place.path(), files);
                     const auto log = Begin(empty);
                     Require(Append(*log, "before").ok());
                     files.FailWritesAfter(10, ENOSPC);
                     for (const char* text : {"first", "second", "third"}) {
                       Require(Append(*log, text).ok());
                       ExpectEqual(log->WriteHeld().code(), Code::kDiskFull);
                     }
                     ExpectEqual(log->num_held(), 3u);
                     ExpectEqual(log->next_lsn(), 5u);
                     ExpectEqual(log->tail().next_lsn, 2u);
                     ExpectEqual(log->Rotate().status().code(), Code::kDiskFull);
                     auto synced = log->Sync();
                     Require(synced.ok());
                     ExpectEqual(synced.value(), 2u);
                     files.FailWritesAfter(40, EDQUOT);  // room for one of them
                     ExpectEqual(log->WriteHeld().code(), Code::kDiskFull);
                     ExpectEqual(log->num_held(), 2u);
                     files.Heal();
                     RequireOk(log->WriteHeld());
                     ExpectEqual(log->num_held(), 0u);
                     Require(Append(*log, "after").ok());
                   }
                   std::vector<std::string> texts;
                   for (const auto& seen : Recover(place.path()).seen) texts.push_back(seen.text);
                   Expect(texts == std::vector<std::string>(
                                       {"before", "first", "second", "third", "after"}));
                 });

const Test kFullSegment(
    "a segment that cannot begin on a full disk begins when there is space", [] {
      const TemporaryDirectory place;
      FaultyFiles files;
      {
        const Recovery empty = Recover(place.path(), files);
        LogOptions options;
        options.segment_bytes = 100;
        auto log = RequireOk(Log::Begin(*empty.directory, empty.found.next_lsn, options));
        Require(
            Append(*log, "a record that fills the segment, since it has many, many bytes").ok());
        for (const std::uint64_t room : {0u, 10u, 40u}) {
          files.FailWritesAfter(room, ENOSPC);
          Require(Append(*log, "held").ok());
        }
        files.Heal();
        RequireOk(log->WriteHeld());
      }
      ExpectEqual(Recover(place.path()).seen.size(), 4u);
    });

const Test kBroken("a write that cannot be undone breaks the log and leaves a torn record", [] {
  const TemporaryDirectory place;
  FaultyFiles files;
  {
    const Recovery empty = Recover(place.path(), files);
    const auto log = Begin(empty);
    Require(Append(*log, "kept").ok());
    files.FailWritesAfter(30, EIO);
    files.FailTruncates(EIO);
    Expect(!Append(*log, "torn, whatever happens").ok());
    files.Heal();
    Expect(log->is_broken());
    Expect(!Append(*log, "refused").ok());
    Expect(!log->Sync().ok());
  }
  const Recovery found = Recover(place.path());
  ExpectEqual(found.seen.size(), 1u);
  ExpectEqual(found.found.torn_bytes, 30u);
});

const Test kSyncs("many waits share one sync, and a failed sync is never retried", [] {
  const TemporaryDirectory place;
  FaultyFiles files;
  const Recovery empty = Recover(place.path(), files);
  const auto log = Begin(empty);
  std::atomic<int> called = 0;
  std::atomic<int> failures = 0;
  GroupCommit commit([&] { return log->Sync(); }, [&](const Status&) { ++failures; });
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) {
        auto lsn = Append(*log, "record");
        Require(lsn.ok());
        commit.When(lsn.value() + 1, [&, end = lsn.value() + 1] {
          Expect(commit.durable_end() >= end);
          ++called;
        });
      }
    });
  }
  threads.clear();
  commit.Drain();
  ExpectEqual(called.load(), 200);
  files.FailSyncs(EIO);
  auto lsn = Append(*log, "never durable");
  Require(lsn.ok());
  commit.When(lsn.value() + 1, [&] { ++called; });
  commit.Drain();
  files.Heal();
  const int syncs = files.num_syncs();
  commit.When(lsn.value() + 1, [&] { ++called; });
  Expect(!Append(*log, "refused").ok());
  ExpectEqual(called.load(), 200);
  ExpectEqual(files.num_syncs(), syncs);
  Expect(log->is_broken());
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
