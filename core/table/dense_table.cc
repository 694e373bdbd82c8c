#include "table/dense_table.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/row_optimizer.h"
#include "parse/hash64.h"
#include "sync/mutex.h"

namespace sparsefleet {
namespace {

constexpr std::uint64_t kStripe = 16384;

// Returns the concatenated parts from the end, in pieces.
class PartsFromEnd {
 public:
  // May throw std::bad_alloc.
  explicit PartsFromEnd(DenseParts parts)
      : parts_(parts), left_(parts.empty() ? 0 : parts.back().size()) {
    // Allocated here, so that running out of memory never leaves a push half applied.
    if (parts.size() > 1) joined_.reserve(std::min<std::size_t>(kStripe, SizeOfParts(parts)));
  }

  // The `count` elements, at most kStripe, before those returned last. Valid until the next call.
  // REQUIRES: that many are left.
  const float* Before(std::size_t count) {
    SkipEmpty();
    if (count <= left_) {
      left_ -= count;
      return parts_.back().data() + left_;
    }
    joined_.resize(count);
    for (std::size_t missing = count; missing > 0;) {
      SkipEmpty();
      const std::size_t taken = std::min(missing, left_);
      left_ -= taken;
      missing -= taken;
      std::copy_n(parts_.back().data() + left_, taken, joined_.data() + missing);
    }
    return joined_.data();
  }

 private:
  void SkipEmpty() {
    while (left_ == 0 && parts_.size() > 1) {
      parts_ = parts_.first(parts_.size() - 1);
      left_ = parts_.back().size();
    }
  }

  DenseParts parts_;  // not yet returned
  std::size_t left_;  // elements of the last part
  std::vector<float> joined_;
};

// What a prepared push needs, allocated before anything changes.
struct PushMemory {
  PartsFromEnd input;
  PartsFromEnd twice;  // the same, for the second half of a step by norms
  std::vector<float> scratch;
};

}  // namespace

DenseRange DenseRangeOf(std::string_view table, std::uint64_t size, std::uint64_t min_block_size,
                        std::uint32_t index, std::uint32_t num_servers) {
  const std::uint64_t parts =
      std::clamp<std::uint64_t>(size / min_block_size, 1, std::max(num_servers, 1U));
  const std::uint64_t first = parts < num_servers ? Hash64(table) % num_servers : 0;
  const std::uint64_t part = index >= first ? index - first : index + num_servers - first;
  if (part >= parts) return {size, size};
  const std::uint64_t each = size / parts;
  const std::uint64_t longer = size % parts;  // this many parts hold one more
  const std::uint64_t begin = part * each + std::min<std::uint64_t>(part, longer);
  return {begin, begin + each + (part < longer ? 1 : 0)};
}

// Values are one array. State is stored stripe by stripe: within a stripe array by array, then the
// step count, so that the optimizer sees a stripe as one long row.
struct DenseTable::Impl {
  Impl(DenseSpec table_spec, DenseRange table_range)
      : spec(std::move(table_spec)),
        range(table_range),
        optimizer(spec.optimizer),
        learning_rate(spec.optimizer.learning_rate),
        num_stripes((range.size() + kStripe - 1) / kStripe),
        mutexes(std::make_unique<Mutex[]>(num_stripes)),
        values(range.size(), 0.0F),
        state(range.size() * optimizer.arrays() + num_stripes * scalars()) {
    for (std::uint64_t s = 0; s < num_stripes; ++s) optimizer.InitState(StateOf(s), Length(s));
  }

  std::string Prefix() const { return "table '" + spec.name + "': "; }
  std::uint64_t scalars() const { return optimizer.has_row_scalar() ? 1 : 0; }
  std::uint32_t state_dim() const {
    return optimizer.arrays() + static_cast<std::uint32_t>(scalars());
  }
  std::uint64_t Begin(std::uint64_t stripe) const { return stripe * kStripe; }
  std::uint64_t Length(std::uint64_t stripe) const {
    return std::min(kStripe, range.size() - Begin(stripe));
  }
  float* StateOf(std::uint64_t stripe) {
    return state.data() + stripe * (kStripe * optimizer.arrays() + scalars());
  }
  const float* StateOf(std::uint64_t stripe) const {
    return const_cast<Impl*>(this)->StateOf(stripe);
  }

  Status CheckRange(std::uint64_t offset, std::uint64_t length) const {
    if (offset <= range.size() && length <= range.size() - offset) return Status::Ok();
    return {Code::kShapeMismatch, Prefix() + "elements " + std::to_string(offset) + " + " +
                                      std::to_string(length) + " are outside the " +
                                      std::to_string(range.size()) + " held here"};
  }
  Status CheckState(std::uint64_t length, std::uint64_t state_length) const {
    if (state_length == length * state_dim()) return Status::Ok();
    return {Code::kShapeMismatch, Prefix() + std::to_string(length) + " elements need " +
                                      std::to_string(length * state_dim()) +
                                      " floats of state, got " + std::to_string(state_length)};
  }

  // Calls visit(stripe, first element within it, first within the span, length) under each stripe's
  // lock.
  template <typename Visit>
  void ForEachStripe(std::uint64_t offset, std::uint64_t length, Visit visit) const {
    for (std::uint64_t done = 0; done < length;) {
      const std::uint64_t stripe = (offset + done) / kStripe;
      const std::uint64_t within = offset + done - Begin(stripe);
      const std::uint64_t count = std::min(length - done, Length(stripe) - within);
      const MutexLock lock(mutexes[stripe]);
      visit(stripe, within, done, count);
      done += count;
    }
  }

  // The same, never between the halves of a push.
  template <typename Visit>
  void ForEachStripeWhole(std::uint64_t offset, std::uint64_t length, Visit visit) const {
    if (!optimizer.needs_norms()) return ForEachStripe(offset, length, visit);
    const MutexLock whole(halves);
    ForEachStripe(offset, length, visit);
  }

  void ReadState(std::uint64_t stripe, std::uint64_t within, std::uint64_t at, std::uint64_t count,
                 std::span<float> out) const;
  void WriteState(std::uint64_t stripe, std::uint64_t within, std::uint64_t at, std::uint64_t count,
                  std::span<const float> in);
  void Apply(PartsFromEnd& input, bool add, float* scratch);
  // The two halves of a step that is scaled by norms; `twice` returns the same input.
  void ApplyByNorms(PartsFromEnd& input, PartsFromEnd& twice, float* scratch);
  // Names the first element that is not finite.
  Status NonFinite(DenseParts gradient) const;

  const DenseSpec spec;
  const DenseRange range;
  const RowOptimizer optimizer;
  std::atomic<double> learning_rate;
  const std::uint64_t num_stripes;
  const std::unique_ptr<Mutex[]> mutexes;
  // Held between the halves of a step that is scaled by norms, so that no other push and no reader
  // of values with state comes in between. Locked before stripes.
  mutable Mutex halves;
  std::vector<float> values;
  std::vector<float> state;
};

Result<std::shared_ptr<DenseTable>> DenseTable::Create(DenseSpec spec) {
  const DenseRange whole{0, spec.size};
  return Create(std::move(spec), whole);
}

Result<std::shared_ptr<DenseTable>> DenseTable::Create(DenseSpec spec, DenseRange range) {
  if (Status status = spec.Validate(); !status.ok()) return status;
  const std::string name = spec.name;
  const std::string size = std::to_string(range.size());
  const Status no_memory(Code::kTooLarge,
                         "table '" + name + "': out of memory for " + size + " elements");
  try {
    auto impl = std::make_unique<Impl>(std::move(spec), range);
    return std::shared_ptr<DenseTable>(new DenseTable(std::move(impl)));
  } catch (const std::bad_alloc&) {
    return no_memory;
  } catch (const std::length_error&) {
    return no_memory;
  }
}

DenseTable::DenseTable(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DenseTable::~DenseTable() = default;

const DenseSpec& DenseTable::spec() const { return impl_->spec; }
const DenseRange& DenseTable::range() const { return impl_->range; }
std::uint64_t DenseTable::size() const { return impl_->range.size(); }
std::uint32_t DenseTable::state_dim() const { return impl_->state_dim(); }

Status DenseTable::Read(std::uint64_t offset, std::span<float> out) const {
  if (Status status = impl_->CheckRange(offset, out.size()); !status.ok()) return status;
  impl_->ForEachStripe(offset, out.size(), [&](auto, auto, auto at, auto count) {
    std::copy_n(impl_->values.begin() + offset + at, count, out.begin() + at);
  });
  return Status::Ok();
}

Status DenseTable::Write(std::uint64_t offset, std::span<const float> values) {
  if (Status status = impl_->CheckRange(offset, values.size()); !status.ok()) return status;
  impl_->ForEachStripe(offset, values.size(), [&](auto, auto, auto at, auto count) {
    std::copy_n(values.begin() + at, count, impl_->values.begin() + offset + at);
  });
  return Status::Ok();
}

Status DenseTable::CheckPush(DenseParts gradient) const {
  if (const std::size_t found = SizeOfParts(gradient); found != size()) {
    return {Code::kShapeMismatch, impl_->Prefix() + "a push needs " + std::to_string(size()) +
                                      " elements, got " + std::to_string(found)};
  }
  if (spec().non_finite != NonFinitePolicy::kRaise || AllFinite(gradient)) return Status::Ok();
  return impl_->NonFinite(gradient);
}

Status DenseTable::Impl::NonFinite(DenseParts gradient) const {
  std::uint64_t at = range.begin;
  for (const auto& part : gradient) {
    const auto bad = std::ranges::find_if_not(part, [](float x) { return std::isfinite(x); });
    at += static_cast<std::uint64_t>(bad - part.begin());
    if (bad == part.end()) continue;
    return {Code::kNonFinite, Prefix() + "gradient of element " + std::to_string(at) + " is " +
                                  std::to_string(*bad) + "; nothing was applied"};
  }
  return Status::Ok();
}

Result<PushResult> DenseTable::Push(DenseParts gradient) {
  if (Status status = CheckPush(gradient); !status.ok()) return status;
  return Change(gradient, false);
}

Result<PushResult> DenseTable::Add(DenseParts delta) {
  if (Status status = CheckPush(delta); !status.ok()) return status;
  return Change(delta, true);
}

Result<PushResult> DenseTable::Change(DenseParts input, bool add) {
  auto prepared = Prepare(input, add);
  if (!prepared.ok()) return prepared.status();
  return prepared.value()();
}

Result<std::function<PushResult()>> DenseTable::Prepare(DenseParts input, bool add) {
  if (spec().non_finite == NonFinitePolicy::kRejectRow && !AllFinite(input)) {
    return std::function([] { return PushResult{.rejected_non_finite = 1}; });
  }
  try {
    const bool needs_scratch = impl_->optimizer.needs_scratch() && !add;
    std::vector<float> scratch(needs_scratch ? std::min(kStripe, size()) : 0);
    const bool by_norms = impl_->optimizer.needs_norms() && !add;
    auto memory = std::make_shared<PushMemory>(PushMemory{
        PartsFromEnd(input), PartsFromEnd(by_norms ? input : DenseParts()), std::move(scratch)});
    return std::function([this, memory, add, by_norms] {
      if (by_norms) {
        impl_->ApplyByNorms(memory->input, memory->twice, memory->scratch.data());
      } else {
        impl_->Apply(memory->input, add, memory->scratch.data());
      }
      return PushResult{.applied = size()};
    });
  } catch (const std::bad_alloc&) {
    return Status(Code::kTooLarge, impl_->Prefix() + "out of memory");
  }
}

void DenseTable::Impl::Apply(PartsFromEnd& input, bool add, float* scratch) {
  const double lr = learning_rate;
  // From the end: the check for NaN has just read that part, so it is still in the cache.
  for (std::uint64_t stripe = num_stripes; stripe-- > 0;) {
    const float* change = input.Before(Length(stripe));
    float* w = values.data() + Begin(stripe);
    const MutexLock lock(mutexes[stripe]);
    if (add) {
      optimizer.kernels().add(w, change, Length(stripe));
    } else {
      optimizer.Update(w, StateOf(stripe), change, Length(stripe), lr, scratch);
    }
  }
}

void DenseTable::Impl::ApplyByNorms(PartsFromEnd& input, PartsFromEnd& twice, float* scratch) {
  const double lr = learning_rate;
  const MutexLock whole(halves);
  SquareSums sums;
  for (std::uint64_t stripe = num_stripes; stripe-- > 0;) {
    const float* gradient = input.Before(Length(stripe));
    const MutexLock lock(mutexes[stripe]);
    optimizer.Measure(values.data() + Begin(stripe), StateOf(stripe), gradient, Length(stripe),
                      scratch, sums);
  }
  for (std::uint64_t stripe = num_stripes; stripe-- > 0;) {
    const float* gradient = twice.Before(Length(stripe));
    const MutexLock lock(mutexes[stripe]);
    optimizer.UpdateMeasured(values.data() + Begin(stripe), StateOf(stripe), gradient,
                             Length(stripe), lr, scratch, sums);
  }
}

void DenseTable::Impl::ReadState(std::uint64_t stripe, std::uint64_t within, std::uint64_t at,
                                 std::uint64_t count, std::span<float> out) const {
  const std::uint64_t total = out.size() / state_dim();
  const float* from = StateOf(stripe);
  for (std::uint32_t a = 0; a < optimizer.arrays(); ++a) {
    std::copy_n(from + a * Length(stripe) + within, count, out.begin() + a * total + at);
  }
  if (scalars() == 0) return;
  const std::uint64_t steps = optimizer.arrays();
  std::fill_n(out.begin() + steps * total + at, count, from[steps * Length(stripe)]);
}

void DenseTable::Impl::WriteState(std::uint64_t stripe, std::uint64_t within, std::uint64_t at,
                                  std::uint64_t count, std::span<const float> in) {
  const std::uint64_t total = in.size() / state_dim();
  float* to = StateOf(stripe);
  for (std::uint32_t a = 0; a < optimizer.arrays(); ++a) {
    std::copy_n(in.begin() + a * total + at, count, to + a * Length(stripe) + within);
  }
  if (scalars() == 0) return;
  const auto first = in.begin() + optimizer.arrays() * total + at;
  float& steps = to[optimizer.arrays() * Length(stripe)];
  const float largest = *std::max_element(first, first + count);
  steps = count == Length(stripe) ? largest : std::max(steps, largest);
}

Status DenseTable::ReadState(std::span<float> out) const {
  if (Status status = impl_->CheckState(size(), out.size()); !status.ok()) return status;
  if (state_dim() == 0) return Status::Ok();
  impl_->ForEachStripe(0, size(), [&](auto stripe, auto within, auto at, auto count) {
    impl_->ReadState(stripe, within, at, count, out);
  });
  return Status::Ok();
}

Status DenseTable::WriteState(std::span<const float> state) {
  if (Status status = impl_->CheckState(size(), state.size()); !status.ok()) return status;
  if (state_dim() == 0) return Status::Ok();
  impl_->ForEachStripe(0, size(), [&](auto stripe, auto within, auto at, auto count) {
    impl_->WriteState(stripe, within, at, count, state);
  });
  return Status::Ok();
}

Status DenseTable::ReadWithState(std::uint64_t offset, std::span<float> values,
                                 std::span<float> state) const {
  if (Status status = impl_->CheckRange(offset, values.size()); !status.ok()) return status;
  if (Status status = impl_->CheckState(values.size(), state.size()); !status.ok()) return status;
  impl_->ForEachStripeWhole(
      offset, values.size(), [&](auto stripe, auto within, auto at, auto count) {
        std::copy_n(impl_->values.begin() + offset + at, count, values.begin() + at);
        if (state_dim() != 0) impl_->ReadState(stripe, within, at, count, state);
      });
  return Status::Ok();
}

Status DenseTable::WriteWithState(std::uint64_t offset, std::span<const float> values,
                                  std::span<const float> state) {
  if (Status status = impl_->CheckRange(offset, values.size()); !status.ok()) return status;
  if (Status status = impl_->CheckState(values.size(), state.size()); !status.ok()) return status;
  impl_->ForEachStripeWhole(
      offset, values.size(), [&](auto stripe, auto within, auto at, auto count) {
        std::copy_n(values.begin() + at, count, impl_->values.begin() + offset + at);
        if (state_dim() != 0) impl_->WriteState(stripe, within, at, count, state);
      });
  return Status::Ok();
}

std::span<float> DenseTable::LiveValues() { return impl_->values; }

double DenseTable::learning_rate() const { return impl_->learning_rate; }

Status DenseTable::SetLearningRate(double learning_rate) {
  if (!std::isfinite(learning_rate) || learning_rate < 0) {
    return {Code::kInvalidArgument, impl_->Prefix() +
                                        "learning rate must be finite and >= 0, got " +
                                        std::to_string(learning_rate)};
  }
  impl_->learning_rate = learning_rate;
  return Status::Ok();
}

std::uint64_t DenseTable::memory_bytes() const {
  return sizeof(DenseTable) + sizeof(Impl) + impl_->num_stripes * sizeof(Mutex) +
         (impl_->values.capacity() + impl_->state.capacity()) * sizeof(float);
}

}  // namespace sparsefleet
