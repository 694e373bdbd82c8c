// The tables of one server, or of one process, by name.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "merge/dense_parts.h"
#include "status/status.h"
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

// One table's part of a push. Dense: `keys` is empty, `gradients` covers all elements held here.
struct PushSection {
  std::string_view table;
  std::span<const Key> keys;
  std::span<const float> gradients;
  bool dense = false;
  bool keys_are_unique = false;
  bool add = false;  // add the values as they are, past the optimizer
  // Dense: the gradient in parts, one after another, in place of `gradients`.
  DenseParts parts = {};
  // To a store. Dense: takes the values that the push has left, or newer ones. Sparse, without
  // gradients: nothing is pushed, and it takes the rows that a training pull of the keys right
  // after the push would read; such sections may name a table again. Empty: not wanted.
  std::span<float> out = {};

  // The gradient in as many parts as it has.
  DenseParts all_parts() const { return parts.empty() ? DenseParts(&gradients, 1) : parts; }
  bool wants_rows() const { return !dense && gradients.empty() && !out.empty(); }
};

// A copy of what is held of a dense table: elements from `begin` on, and their state as
// DenseTable::ReadState() gives it.
struct DenseCut {
  std::uint64_t begin = 0;
  std::vector<float> values;
  std::vector<float> state;
};

using AnyCut = std::variant<TableCut, DenseCut>;

class TableSet {
 public:
  // Defining the same spec again is fine and does nothing; another spec under the same
  // name is kTableConflict naming the first field that differs. Learning rates do not count as
  // a difference: they change while running.
  Status Define(const SparseSpec& spec);
  // Holds the range of the table that is the part of server `index` of `num_servers`.
  Status Define(const DenseSpec& spec, std::uint32_t index = 0, std::uint32_t num_servers = 1);

  // kUnknownTable naming the tables there are; kInvalidArgument for the other kind.
  Result<std::shared_ptr<SparseTable>> Sparse(std::string_view name) const;
  Result<std::shared_ptr<DenseTable>> Dense(std::string_view name) const;
  // Of which elements [offset, offset + count) are held here; else kShapeMismatch.
  Result<std::shared_ptr<DenseTable>> DensePart(std::string_view name, std::uint64_t offset,
                                                std::uint64_t count) const;
  std::vector<std::string> Names() const;  // sorted

  // All sections are checked before the first is carried out: all or nothing.
  // A table may occur once a push.
  Status Pull(std::span<const PullSection> sections, PullMode mode, std::uint64_t step);
  // Each table named gets its version raised by one.
  Result<PushResult> Push(std::span<const PushSection> sections, std::uint64_t step);

  // Tables, all unless they are named, as of one moment: no push shows in part, whatever number of
  // tables it is for.
  // Pushes pause for as long as it takes to copy the dense tables, whatever the size of the
  // sparse ones. `only_dirty` and `clear_dirty` as in SparseTable::OpenCut(); dense tables are
  // whole. kInvalidArgument where `only_dirty` is asked of a table that does not track it.
  Result<std::map<std::string, AnyCut>> OpenCuts(
      bool only_dirty, bool clear_dirty,
      std::optional<std::vector<std::string>> names = std::nullopt);

  // Replaces all values held of a dense table; kShapeMismatch unless there are as many.
  Status WriteDense(std::string_view table, std::span<const float> values);
  // What is held of a dense table, as of one moment.
  Result<DenseCut> ReadDensePart(std::string_view table);
  // Elements from `begin` on, counted in the whole table, with their state unless it is nothing;
  // kShapeMismatch where they are not held here.
  Status WriteDensePart(std::string_view table, std::uint64_t begin, std::span<const float> values,
                        std::optional<std::span<const float>> state);

  // The checks of Push without its effect.
  Status CheckPush(std::span<const PushSection> sections) const;

  // A rate set with a smaller `at` than that of one already taken is ignored: of rates that
  // several workers set as their common count goes on, the latest stays. One without `at` is always
  // taken, and after it any count: another training begins at 0.
  Status SetLearningRate(std::string_view table, double learning_rate,
                         std::optional<std::uint64_t> at = std::nullopt);
  Result<std::uint64_t> Version(std::string_view table) const;  // pushes applied so far

 private:
  using AnyTable = std::variant<std::shared_ptr<SparseTable>, std::shared_ptr<DenseTable>>;
  // The count at which the learning rate was set last.
  struct RateTime {
    std::mutex mutex;
    std::uint64_t at = 0;
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
  mutable std::shared_mutex mutex_;
  std::map<std::string, Entry, std::less<>> tables_;
  // Pushes, and all that writes to dense tables, are its writers. Before the gates of tables.
  CutGate gate_;
};

}  // namespace sparsefleet
