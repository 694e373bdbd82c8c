#include "table/table_set.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <shared_mutex>
#include <string>
#include <utility>

#include "sync/mutex.h"

namespace sparsefleet {
namespace {

std::string Prefix(std::string_view table) { return "table '" + std::string(table) + "': "; }

Status Conflict(std::string_view table, const std::string& difference) {
  return {Code::kTableConflict, Prefix(table) + "already defined; its " + difference};
}

Status WrongKind(std::string_view table, bool is_dense) {
  return {Code::kInvalidArgument,
          Prefix(table) + (is_dense ? "is dense, not sparse" : "is sparse, not dense")};
}

// The memory is touched here rather than while pushes wait.
DenseCut RoomFor(const DenseTable& table) {
  DenseCut cut;
  cut.begin = table.range().begin;
  cut.values.resize(table.size());
  cut.state.resize(table.size() * table.state_dim());
  return cut;
}

// Whether applying the push takes longer than passing parts of it to other threads.
bool IsWorthATeam(std::span<const PushSection> sections) {
  constexpr std::size_t kFewKeys = 256;
  constexpr std::size_t kFewValues = 16384;
  std::size_t keys = 0;
  std::size_t values = 0;
  for (const PushSection& section : sections) {
    keys += section.keys.size();
    values += section.gradients.size();
  }
  return keys > kFewKeys || values > kFewValues;
}

// Applies prepared changes: each dense table as a whole, sparse ones in parts. A row, or a dense
// table, is changed by one thread, so the result is that of one thread.
PushResult ApplyTogether(Team& team, std::span<const std::function<PushResult()>> dense,
                         std::span<std::optional<PreparedChange>> sparse) {
  constexpr std::size_t kParts = PreparedChange::kParts;
  std::vector<std::size_t> whole;
  for (std::size_t i = 0; i < dense.size(); ++i) {
    if (dense[i]) whole.push_back(i);
    if (sparse[i]) sparse[i]->BeginParts();
  }
  std::vector<PushResult> of_dense(whole.size());
  std::vector<std::array<PushResult, kParts>> of_sparse(sparse.size());
  team.Run(whole.size() + kParts, [&](std::size_t task) {
    if (task < whole.size()) {
      of_dense[task] = dense[whole[task]]();
      return;
    }
    const std::size_t part = task - whole.size();
    for (std::size_t i = 0; i < sparse.size(); ++i) {
      if (sparse[i]) of_sparse[i][part] = sparse[i]->ApplyPart(part);
    }
  });
  PushResult total;
  for (const PushResult& result : of_dense) total += result;
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    if (!sparse[i]) continue;
    PushResult result;
    for (const PushResult& part : of_sparse[i]) result += part;
    sparse[i]->End(result);
    total += result;
  }
  return total;
}

}  // namespace

// An existing table is compared under the shared lock; a new one is built without any lock, since
// that may take long, and compared again if another caller was faster.
template <typename Compare, typename Create>
Status TableSet::DefineOnce(const std::string& name, Compare compare, Create create) {
  {
    const ReaderLock lock(mutex_);
    if (const auto found = tables_.find(name); found != tables_.end()) {
      return compare(found->second.table);
    }
  }
  auto created = create();
  if (!created.ok()) return created.status();
  Entry entry{std::move(created).value(), std::make_shared<std::atomic<std::uint64_t>>(0),
              std::make_shared<RateTime>()};
  const WriterLock lock(mutex_);
  if (auto* table = std::get_if<std::shared_ptr<SparseTable>>(&entry.table)) {
    (*table)->SetBirthLog(births_);
  }
  const auto [place, inserted] = tables_.try_emplace(name, std::move(entry));
  return inserted ? Status::Ok() : compare(place->second.table);
}

Status TableSet::Define(const SparseSpec& spec) {
  if (Status status = spec.Validate(); !status.ok()) return status;
  const auto compare = [&](const AnyTable& any) -> Status {
    const auto* table = std::get_if<std::shared_ptr<SparseTable>>(&any);
    if (table == nullptr) return Conflict(spec.name, "kind is dense, expected sparse");
    const std::string difference = DescribeDifference((*table)->spec(), spec);
    return difference.empty() ? Status::Ok() : Conflict(spec.name, difference);
  };
  return DefineOnce(spec.name, compare, [&] { return SparseTable::Create(spec); });
}

Status TableSet::Define(const DenseSpec& spec, std::uint32_t index, std::uint32_t num_servers) {
  if (Status status = spec.Validate(); !status.ok()) return status;
  if (index >= num_servers) {
    return {Code::kInvalidArgument, Prefix(spec.name) + "server " + std::to_string(index) + " of " +
                                        std::to_string(num_servers)};
  }
  const DenseRange range =
      DenseRangeOf(spec.name, spec.size, spec.min_block_size, index, num_servers);
  const auto compare = [&](const AnyTable& any) -> Status {
    const auto* table = std::get_if<std::shared_ptr<DenseTable>>(&any);
    if (table == nullptr) return Conflict(spec.name, "kind is sparse, expected dense");
    const std::string difference = DescribeDifference((*table)->spec(), spec);
    if (!difference.empty()) return Conflict(spec.name, difference);
    if ((*table)->range() == range) return Status::Ok();
    return Conflict(spec.name, "range begins at " + std::to_string((*table)->range().begin) +
                                   ", expected " + std::to_string(range.begin));
  };
  return DefineOnce(spec.name, compare, [&] { return DenseTable::Create(spec, range); });
}

Result<TableSet::Entry> TableSet::Find(std::string_view name) const {
  const ReaderLock lock(mutex_);
  if (const auto found = tables_.find(name); found != tables_.end()) return found->second;
  constexpr std::size_t kNamed = 10;
  std::string known;
  std::size_t named = 0;
  for (const auto& [other, entry] : tables_) {
    if (named++ == kNamed) break;
    known += (known.empty() ? "'" : ", '") + other + "'";
  }
  if (tables_.size() > kNamed) known += " and " + std::to_string(tables_.size() - kNamed) + " more";
  return Status(Code::kUnknownTable,
                "no table '" + std::string(name) + "'; " +
                    (known.empty() ? "no table is defined" : "known tables: " + known));
}

Result<std::shared_ptr<SparseTable>> TableSet::Sparse(std::string_view name) const {
  auto entry = Find(name);
  if (!entry.ok()) return entry.status();
  const auto* table = std::get_if<std::shared_ptr<SparseTable>>(&entry.value().table);
  if (table == nullptr) return WrongKind(name, true);
  return *table;
}

Result<std::shared_ptr<DenseTable>> TableSet::Dense(std::string_view name) const {
  auto entry = Find(name);
  if (!entry.ok()) return entry.status();
  const auto* table = std::get_if<std::shared_ptr<DenseTable>>(&entry.value().table);
  if (table == nullptr) return WrongKind(name, false);
  return *table;
}

Result<std::shared_ptr<DenseTable>> TableSet::DensePart(std::string_view name, std::uint64_t offset,
                                                        std::uint64_t count) const {
  auto table = Dense(name);
  if (!table.ok()) return table;
  const std::uint64_t size = table.value()->size();
  if (offset <= size && count <= size - offset) return table;
  return Status(Code::kShapeMismatch, Prefix(name) + "elements " + std::to_string(offset) + " + " +
                                          std::to_string(count) + " are outside the " +
                                          std::to_string(size) + " held here");
}

std::vector<std::string> TableSet::Names() const {
  const ReaderLock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, entry] : tables_) names.push_back(name);
  return names;
}

Result<TableSet::Entry> TableSet::CheckSection(const PullSection& section) const {
  auto entry = Find(section.table);
  if (!entry.ok()) return entry;
  const auto* sparse = std::get_if<std::shared_ptr<SparseTable>>(&entry.value().table);
  if (section.dense == (sparse != nullptr)) return WrongKind(section.table, sparse == nullptr);
  if (sparse != nullptr) {
    const std::size_t wanted = section.keys.size() * (*sparse)->dim();
    if (section.out.size() == wanted) return entry;
    return Status(Code::kShapeMismatch,
                  Prefix(section.table) + std::to_string(section.keys.size()) + " keys of width " +
                      std::to_string((*sparse)->dim()) + " need " + std::to_string(wanted) +
                      " floats of room, got " + std::to_string(section.out.size()));
  }
  if (auto part = DensePart(section.table, section.offset, section.out.size()); !part.ok()) {
    return part.status();
  }
  return entry;
}

Result<TableSet::Entry> TableSet::CheckSection(const PushSection& section) const {
  auto entry = Find(section.table);
  if (!entry.ok()) return entry;
  const auto* sparse = std::get_if<std::shared_ptr<SparseTable>>(&entry.value().table);
  if (section.dense == (sparse != nullptr)) return WrongKind(section.table, sparse == nullptr);
  if (sparse != nullptr && !section.parts.empty()) {
    return Status(Code::kShapeMismatch,
                  Prefix(section.table) + "only a dense table takes a gradient in parts");
  }
  const Status status = sparse != nullptr
                            ? (*sparse)->CheckPush(section.keys, section.gradients)
                            : std::get<std::shared_ptr<DenseTable>>(entry.value().table)
                                  ->CheckPush(section.all_parts());
  if (!status.ok()) return status;
  return entry;
}

Status TableSet::Pull(std::span<const PullSection> sections, PullMode mode, std::uint64_t step) {
  std::vector<AnyTable> tables;
  tables.reserve(sections.size());
  for (const PullSection& section : sections) {
    auto entry = CheckSection(section);
    if (!entry.ok()) return entry.status();
    tables.push_back(std::move(entry).value().table);
  }
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const PullSection& section = sections[i];
    const Status status = section.dense ? std::get<std::shared_ptr<DenseTable>>(tables[i])->Read(
                                              section.offset, section.out)
                                        : std::get<std::shared_ptr<SparseTable>>(tables[i])->Pull(
                                              section.keys, mode, step, section.out);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

Result<std::vector<TableSet::Entry>> TableSet::CheckSections(
    std::span<const PushSection> sections) const {
  std::vector<Entry> entries;
  entries.reserve(sections.size());
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const auto same = [&](const PushSection& other) { return other.table == sections[i].table; };
    if (std::any_of(sections.begin(), sections.begin() + static_cast<std::ptrdiff_t>(i), same)) {
      return Status(Code::kInvalidArgument,
                    Prefix(sections[i].table) + "appears twice in one push");
    }
    auto entry = CheckSection(sections[i]);
    if (!entry.ok()) return entry.status();
    entries.push_back(std::move(entry).value());
  }
  return entries;
}

Status TableSet::CheckPush(std::span<const PushSection> sections) const {
  return CheckSections(sections).status();
}

Result<PushResult> TableSet::Push(std::span<const PushSection> sections, std::uint64_t step,
                                  const BeforePush& before) {
  auto checked = CheckSections(sections);
  if (!checked.ok()) return checked.status();
  const std::vector<Entry>& entries = checked.value();
  std::vector<std::size_t> by_name(sections.size());
  std::iota(by_name.begin(), by_name.end(), std::size_t{0});
  std::ranges::sort(by_name, {}, [&](std::size_t i) { return sections[i].table; });
  std::vector<std::function<PushResult()>> dense(sections.size());
  std::vector<std::optional<PreparedChange>> sparse(sections.size());
  const auto writer = gate_.EnterWriter();
  for (const std::size_t i : by_name) {
    const PushSection& s = sections[i];
    if (s.dense) {
      auto prepared =
          std::get<std::shared_ptr<DenseTable>>(entries[i].table)->Prepare(s.all_parts(), s.add);
      if (!prepared.ok()) return prepared.status();
      dense[i] = std::move(prepared).value();
    } else {
      auto prepared = std::get<std::shared_ptr<SparseTable>>(entries[i].table)
                          ->Prepare(s.keys, s.gradients, step, s.keys_are_unique, s.add);
      if (!prepared.ok()) return prepared.status();
      sparse[i].emplace(std::move(prepared).value());
    }
  }
  if (before) {
    if (Status s = before(); !s.ok()) return s;
  }
  PushResult total;
  if (team_ != nullptr && IsWorthATeam(sections)) {
    total = ApplyTogether(*team_, dense, sparse);
  } else {
    for (std::size_t i = 0; i < sections.size(); ++i) {
      total += sections[i].dense ? dense[i]() : sparse[i]->Apply();
    }
  }
  for (const Entry& entry : entries) entry.version->fetch_add(1);
  return total;
}

Result<TableSet::Meta> TableSet::ReadMeta(std::string_view table) const {
  auto entry = Find(table);
  if (!entry.ok()) return entry.status();
  RateTime& time = *entry.value().rate_time;
  const MutexLock lock(time.mutex);
  return Meta{
      entry.value().version->load(),
      std::visit([](const auto& held) { return held->learning_rate(); }, entry.value().table),
      time.at};
}

Status TableSet::WriteMeta(std::string_view table, const Meta& meta) {
  auto entry = Find(table);
  if (!entry.ok()) return entry.status();
  entry.value().version->store(meta.version);
  RateTime& time = *entry.value().rate_time;
  const MutexLock lock(time.mutex);
  time.at = meta.rate_at;
  return std::visit([&](auto& held) { return held->SetLearningRate(meta.learning_rate); },
                    entry.value().table);
}

void TableSet::SetBirthLog(BirthLog* births) {
  const WriterLock lock(mutex_);
  births_ = births;
  for (auto& [name, entry] : tables_) {
    if (auto* table = std::get_if<std::shared_ptr<SparseTable>>(&entry.table)) {
      (*table)->SetBirthLog(births);
    }
  }
}

Status TableSet::SetLearningRate(std::string_view table, double learning_rate,
                                 std::optional<std::uint64_t> at) {
  auto entry = Find(table);
  if (!entry.ok()) return entry.status();
  RateTime& time = *entry.value().rate_time;
  const MutexLock lock(time.mutex);
  if (at && *at < time.at) return Status::Ok();
  const Status status = std::visit([&](auto& held) { return held->SetLearningRate(learning_rate); },
                                   entry.value().table);
  if (status.ok()) time.at = at.value_or(0);
  return status;
}

Result<std::uint64_t> TableSet::Version(std::string_view table) const {
  auto entry = Find(table);
  if (!entry.ok()) return entry.status();
  return entry.value().version->load();
}

Result<std::map<std::string, AnyCut>> TableSet::OpenCuts(
    bool only_dirty, bool clear_dirty, std::optional<std::vector<std::string>> names,
    bool for_snapshot) {
  std::map<std::string, AnyTable> tables;
  for (const std::string& name : names ? *names : Names()) {
    auto entry = Find(name);
    if (!entry.ok()) return entry.status();
    tables.emplace(name, entry.value().table);
  }
  std::map<std::string, AnyCut> cuts;
  std::vector<std::pair<SparseTable*, TableCut*>> sparse;
  std::vector<std::pair<DenseTable*, DenseCut*>> dense;
  try {
    for (const auto& [name, any] : tables) {
      if (const auto* held = std::get_if<std::shared_ptr<SparseTable>>(&any)) {
        if (Status s = (*held)->CheckCut(only_dirty); !s.ok()) return s;
        const auto place =
            cuts.emplace(name, (*held)->PrepareCut(only_dirty, clear_dirty, for_snapshot)).first;
        sparse.emplace_back(held->get(), &std::get<TableCut>(place->second));
      } else {
        const auto& table = std::get<std::shared_ptr<DenseTable>>(any);
        const auto place = cuts.emplace(name, RoomFor(*table)).first;
        dense.emplace_back(table.get(), &std::get<DenseCut>(place->second));
      }
    }
    std::vector<std::unique_lock<std::shared_mutex>> stopped;
    stopped.reserve(sparse.size());
    const auto alone = gate_.EnterCut();
    for (const auto& [table, cut] : sparse) stopped.push_back(table->StopWriters());
    for (const auto& [table, cut] : sparse) cut->Begin();
    // All writers of dense tables wait for `alone`.
    stopped.clear();
    for (const auto& [table, cut] : dense) {
      if (Status s = table->ReadWithState(0, cut->values, cut->state); !s.ok()) return s;
    }
  } catch (const std::bad_alloc&) {
    return Status(Code::kTooLarge, "out of memory for a cut through all tables");
  }
  return cuts;
}

Status TableSet::WriteDense(std::string_view table, std::span<const float> values) {
  auto found = Dense(table);
  if (!found.ok()) return found.status();
  DenseTable& dense = *found.value();
  if (values.size() != dense.size()) {
    return {Code::kShapeMismatch,
            "dense table '" + dense.spec().name + "' has " + std::to_string(dense.size()) +
                " elements, but the write has " + std::to_string(values.size())};
  }
  const auto writer = gate_.EnterWriter();
  return dense.Write(0, values);
}

Result<DenseCut> TableSet::ReadDensePart(std::string_view table) {
  auto found = Dense(table);
  if (!found.ok()) return found.status();
  try {
    DenseCut cut = RoomFor(*found.value());
    const auto alone = gate_.EnterCut();
    Status s = found.value()->ReadWithState(0, cut.values, cut.state);
    if (!s.ok()) return s;
    return cut;
  } catch (const std::bad_alloc&) {
    return Status(Code::kTooLarge, "table '" + std::string(table) + "': out of memory for a copy");
  }
}

Status TableSet::WriteDensePart(std::string_view table, std::uint64_t begin,
                                std::span<const float> values,
                                std::optional<std::span<const float>> state) {
  auto found = Dense(table);
  if (!found.ok()) return found.status();
  DenseTable& dense = *found.value();
  const DenseRange range = dense.range();
  if (begin < range.begin || begin > range.end || values.size() > range.end - begin) {
    return {Code::kShapeMismatch,
            "dense table '" + dense.spec().name + "': elements " + std::to_string(begin) + " + " +
                std::to_string(values.size()) + " are not among " + std::to_string(range.begin) +
                " to " + std::to_string(range.end) + ", the range held here"};
  }
  const std::uint64_t offset = begin - range.begin;
  const auto writer = gate_.EnterWriter();
  return state ? dense.WriteWithState(offset, values, *state) : dense.Write(offset, values);
}

}  // namespace sparsefleet
