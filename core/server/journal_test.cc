#include "server/journal.h"

#include <filesystem>
#include <vector>

#include "testing/check.h"
#include "testing/faulty_files.h"

namespace sparsefleet::testing {
namespace {

std::uint64_t BytesIn(const std::string& path) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    std::error_code gone;  // a spare that was being written when it was listed
    const auto size = entry.file_size(gone);
    if (!gone) bytes += size;
  }
  return bytes;
}

const Test kDue("a log that is long for its snapshot is replaced, and its segments are reused", [] {
  const TemporaryDirectory place;
  JournalOptions options;
  options.durability = Durability::kProcess;
  options.directory = place.path();
  auto journal = RequireOk(Journal::Open(std::move(options)));
  RequireOk(journal->Recover(1, [](bool, const Record&) { return Status::Ok(); }));
  const std::vector<std::byte> payload(1 << 20);
  std::uint64_t most = 0;
  for (int snapshots = 0; snapshots < 3; ++snapshots) {
    int records = 0;
    for (; !journal->IsSnapshotDue(); ++records) {
      RequireOk(journal->Append(LogRecord::kRequest, payload));
      Require(records < 1000, "no snapshot is due");
    }
    Expect(records > 250 && records < 260, "due after " + std::to_string(records) + " MiB");
    most = std::max(most, BytesIn(place.path()));
    auto snapshot = RequireOk(journal->WriteSnapshot(RequireOk(journal->BeginSnapshot())));
    RequireOk(journal->CommitSnapshot(*snapshot, 0));
    Expect(!journal->IsSnapshotDue());
  }
  Expect(most < 400ull << 20, "the log has " + std::to_string(most) + " bytes");
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
