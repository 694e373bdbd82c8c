// The store whose tables live in this process.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>

#include "store/coordinator.h"
#include "store/store.h"

namespace sparsefleet {

// Tables and the waits on them: shared by a server and a store over the server's own tables.
struct ServedTables {
  explicit ServedTables(std::uint32_t place = 0, std::uint32_t count = 1)
      : index(place), num_servers(count) {}

  const std::uint32_t index;  // the server's index among num_servers
  const std::uint32_t num_servers;
  TableSet tables;
  Coordinator coordinator;
  // Called before a cut that clears dirty bits opens: from then on, removed keys are recorded.
  std::function<Status(const std::vector<std::string>& tables)> on_clearing_cut = {};
};

class LocalStore final : public Store {
 public:
  LocalStore();
  // A store over the tables of a server, for the program running it. Its pushes notify those
  // waiting at the server for a table's version.
  explicit LocalStore(std::shared_ptr<ServedTables> server);
  ~LocalStore() override;  // ends every wait with kShuttingDown, except those of a server

  TableSet& tables();

  // TableSet::OpenCuts; `commit` selects when the cuts of sparse tables clear dirty bits.
  using Cuts = std::map<std::string, std::variant<std::unique_ptr<StoreCut>, DenseCut>>;
  Result<Cuts> OpenCuts(bool only_dirty, bool clear_dirty, CutCommit commit = CutCommit::kAtEnd,
                        std::optional<std::vector<std::string>> names = std::nullopt);

  std::uint32_t num_servers() const override { return 1; }
  Status Define(const SparseSpec& spec, double timeout_s) override;
  Status Define(const DenseSpec& spec, double timeout_s) override;
  Result<TableInfo> Info(std::string_view table, double timeout_s) override;
  Status Pull(std::span<const PullSection> sections, PullMode mode, std::uint64_t step,
              double timeout_s) override;
  Result<PushResult> Push(std::span<const PushSection> sections, std::uint64_t step,
                          double timeout_s) override;
  Status WriteDense(std::string_view table, std::span<const float> values,
                    double timeout_s) override;
  Status SetLearningRate(std::string_view table, double learning_rate,
                         std::optional<std::uint64_t> at, double timeout_s) override;
  Result<PushResult> PushRound(const RoundMember& member, std::uint64_t round,
                               std::span<const PushSection> sections, std::uint64_t step,
                               double timeout_s) override;
  Result<std::uint64_t> AdvanceClock(const RoundMember& member, std::uint64_t clock,
                                     std::optional<std::uint64_t> bound, double timeout_s) override;
  Status LeaveGroup(const RoundMember& member, double timeout_s) override;
  Result<std::uint64_t> Version(std::string_view table, double timeout_s) override;
  Status WaitVersion(std::string_view table, std::uint64_t at_least, double timeout_s) override;
  Status Barrier(std::string_view name, std::uint32_t members, double timeout_s) override;
  Status PutNote(std::string_view key, std::string_view value, double timeout_s) override;
  Result<std::string> GetNote(std::string_view key, bool wait, double timeout_s) override;
  Result<std::vector<std::optional<std::string>>> GetNotes(std::span<const std::string_view> keys,
                                                           double timeout_s) override;
  Status DeleteNote(std::string_view key, double timeout_s) override;
  Result<std::vector<StatMap>> Stats(double timeout_s) override;
  Result<std::uint64_t> Shrink(std::string_view table, std::uint64_t step,
                               double timeout_s) override;
  Result<std::uint64_t> Erase(std::string_view table, std::span<const Key> keys,
                              double timeout_s) override;
  Result<std::unique_ptr<StoreCut>> OpenCut(std::string_view table, bool only_dirty,
                                            bool clear_dirty, double timeout_s) override;
  Status Import(std::string_view table, const RowBatch& rows, double timeout_s) override;
  Status WatchChanges(std::string_view table, double timeout_s) override;
  Result<std::unique_ptr<StoreCut>> TakeChanges(std::string_view table, double timeout_s) override;
  Result<std::vector<std::byte>> Command(std::uint32_t server, std::string_view name,
                                         std::span<const std::byte> body,
                                         double timeout_s) override;
  Status Shutdown(double timeout_s) override {
    (void)timeout_s;
    return Status::Ok();
  }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sparsefleet
