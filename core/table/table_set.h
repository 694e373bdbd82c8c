// The tables of one server, or of one process, by name.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "merge/dense_parts.h"
#include "status/status.h"
#include "sync/mutex.h"
#include "sync/team.h"
#include "table/cut_gate.h"
#include "table/dense_table.h"
#include "table/sparse_table.h"

namespace sparsefleet {

// One table's part of a pull. Dense: `keys` is empty and `out` takes elements
// [offset, offset + out.size()).
struct PullSection {
  std::string_view table;
  std::span<const Key> keys;
  std::span<float> out;
  bool dense = false;
  std::uint64_t offset = 0;
};

// Training data that a push was computed from: positions [begin, end) of a stream, such as the
// batches of a worker or the records of a file. Servers remember what they have applied, by session
// and stream, in the latest epoch. Format: do not change.
struct DataMark {
  std::uint64_t stream = 0;
  std::uint64_t epoch = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool operator==(const DataMark&) const = default;
};

// One table's part of a push. Dense: `keys` is empty, `gradients` covers all elements held here.
struct PushSection {
  std::string_view table;
  std::span<const Key> keys;
  std::span<const float> gradients;
  bool dense = false;
  bool keys_are_unique = false;
  bool add = false;  // add the values, bypassing the optimizer
  // Dense: the gradient in consecutive parts, instead of `gradients`.
  DenseParts parts = {};
  // For a store. Dense: receives the values after the push, or newer ones. Sparse, without
  // gradients: pushes nothing, and receives the rows that a training pull of the keys right after
  // the push would read; such sections may repeat a table. Empty: not requested.
  std::span<float> out = {};

  // The gradient as a list of parts.
  // Alone, without a table: the origin of the push's data.
  std::span<const DataMark> marks = {};

  DenseParts all_parts() const { return parts.empty() ? DenseParts(&gradients, 1) : parts; }
  bool wants_rows() const { return !dense && gradients.empty() && !out.empty(); }
};

// A copy of the held part of a dense table: elements from `begin`, and their state as
// DenseTable::ReadState() returns it.
struct DenseCut {
  std::uint64_t begin = 0;
  std::vector<float> values;
  std::vector<float> state;
};

using AnyCut = std::variant<TableCut, DenseCut>;

class TableSet {
 public:
  // Defining the same spec again does nothing; a different spec under the same name is
  // kTableConflict naming the first field that differs. Learning rates are not compared: they
  // change while running.
  Status Define(const SparseSpec& spec);
  // Defines a dense table and holds the range of server `index` of `num_servers`.
  Status Define(const DenseSpec& spec, std::uint32_t index = 0, std::uint32_t num_servers = 1);

  // kUnknownTable listing the existing tables; kInvalidArgument for the other kind.
  Result<std::shared_ptr<SparseTable>> Sparse(std::string_view name) const;
  Result<std::shared_ptr<DenseTable>> Dense(std::string_view name) const;
  // kShapeMismatch unless elements [offset, offset + count) are held here.
  Result<std::shared_ptr<DenseTable>> DensePart(std::string_view name, std::uint64_t offset,
                                                std::uint64_t count) const;
  std::vector<std::string> Names() const;  // sorted

  // All sections are checked before the first is applied: all or nothing.
  // A table may occur once per push.
  Status Pull(std::span<const PullSection> sections, PullMode mode, std::uint64_t step);
  // Raises the version of each table by one.
  // `before` is called once nothing can fail any more, before the first table changes; if it
  // returns an error, nothing is applied.
  using BeforePush = std::function<Status()>;
  Result<PushResult> Push(std::span<const PushSection> sections, std::uint64_t step,
                          const BeforePush& before = {});

  // Tables, all or those named, as of one moment: no push shows in part, however many tables it
  // spans. Pushes pause while the dense tables are copied, whatever the size of the sparse ones.
  // `only_dirty` and `clear_dirty` as in SparseTable::OpenCut(); dense tables are always complete.
  // kInvalidArgument if `only_dirty` is requested of a table that does not track it.
  Result<std::map<std::string, AnyCut>> OpenCuts(
      bool only_dirty, bool clear_dirty,
      std::optional<std::vector<std::string>> names = std::nullopt, bool for_snapshot = false);

  // Replaces all values held of a dense table; kShapeMismatch unless the number matches.
  Status WriteDense(std::string_view table, std::span<const float> values);
  // The held part of a dense table, as of one moment.
  Result<DenseCut> ReadDensePart(std::string_view table);
  // Writes elements from `begin`, counted in the whole table, and their state unless it is null;
  // kShapeMismatch if they are not held here.
  Status WriteDensePart(std::string_view table, std::uint64_t begin, std::span<const float> values,
                        std::optional<std::span<const float>> state);

  // The checks of Push without its effect.
  Status CheckPush(std::span<const PushSection> sections) const;

  // A rate with a smaller `at` than one already taken is ignored: of the rates that several workers
  // set as their common count advances, the latest wins. One without `at` is always taken, and so
  // is any count after it, since another training run starts at 0.
  Status SetLearningRate(std::string_view table, double learning_rate,
                         std::optional<std::uint64_t> at = std::nullopt);
  // The properties of a table that a snapshot keeps in addition to its content.
  struct Meta {
    std::uint64_t version = 0;
    double learning_rate = 0;
    std::uint64_t rate_at = 0;
  };
  Result<Meta> ReadMeta(std::string_view table) const;
  Status WriteMeta(std::string_view table, const Meta& meta);
  // For all current and future tables; see SparseTable::SetBirthLog.
  void SetBirthLog(BirthLog* births);
  // Applies pushes on the threads of `team` from now on, or on the caller's thread if null. The
  // results are the same. Not thread-safe: at most one thread may push meanwhile.
  void SetTeam(Team* team) { team_ = team; }

  Result<std::uint64_t> Version(std::string_view table) const;  // pushes applied so far

 private:
  using AnyTable = std::variant<std::shared_ptr<SparseTable>, std::shared_ptr<DenseTable>>;
  // The count at which the learning rate was last set.
  struct RateTime {
    Mutex mutex;
    std::uint64_t at GUARDED_BY(mutex) = 0;
  };
  struct Entry {
    AnyTable table;
    std::shared_ptr<std::atomic<std::uint64_t>> version;
    std::shared_ptr<RateTime> rate_time;
  };
  template <typename Compare, typename Create>
  Status DefineOnce(const std::string& name, Compare compare, Create create);
  Result<Entry> Find(std::string_view name) const;
  Result<Entry> CheckSection(const PullSection& section) const;
  Result<Entry> CheckSection(const PushSection& section) const;
  Result<std::vector<Entry>> CheckSections(std::span<const PushSection> sections) const;
  mutable SharedMutex mutex_;
  std::map<std::string, Entry, std::less<>> tables_ GUARDED_BY(mutex_);
  // Pushes, and all writes to dense tables, enter as writers. Locked before the tables' own gates.
  BirthLog* births_ = nullptr;
  Team* team_ = nullptr;
  CutGate gate_;
};

}  // namespace sparsefleet
