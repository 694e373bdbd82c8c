// Table specs: what a user declares and what a define request carries.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "optimizer/optimizer_spec.h"
#include "status/status.h"

namespace sparsefleet {

inline constexpr std::uint32_t kMaxDim = 4096;
inline constexpr std::size_t kMaxTableNameBytes = 255;
// More would not fit into an address space, and sizes in bytes must not overflow.
inline constexpr std::uint64_t kMaxDenseSize = std::uint64_t{1} << 56;
// A row counts its pushes in 31 bits; the dirty bit takes the last one of the word.
inline constexpr std::uint32_t kMaxCount = 0x7fffffff;

enum class InitializerKind : std::uint8_t { kConstant = 0, kUniform, kNormal, kTruncatedNormal };

// How a row's initial value is drawn, a pure function of (seed, key, column).
struct InitializerSpec {
  InitializerKind kind = InitializerKind::kConstant;
  // constant: value = a. uniform: a <= value < b. normal: mean a, deviation b.
  // truncated normal: the same, redrawn to lie within two deviations of the mean.
  double a = 0.0;
  double b = 0.0;
  bool operator==(const InitializerSpec&) const = default;
};

// Which keys get a row. A key that is held back reads as zeros and stores no row.
enum class AdmissionKind : std::uint8_t { kAlways = 0, kCount, kProbability };
struct AdmissionSpec {
  AdmissionKind kind = AdmissionKind::kAlways;
  std::uint32_t count = 1;  // kCount: the training pull that creates the row
  double probability =
      1.0;  // kProbability: chance at each training pull, pure in (seed, key, step)
  bool operator==(const AdmissionSpec&) const = default;
};

// Which rows Shrink() removes: those matching any rule with a value > 0.
struct EvictionSpec {
  std::uint32_t untouched_steps = 0;    // not pushed for more than this many steps
  std::uint32_t untouched_seconds = 0;  // not pushed for more than this many seconds
  std::uint32_t min_count = 0;          // pushed fewer times than this
  double min_norm = 0.0;                // L2 norm of the values below this
  bool operator==(const EvictionSpec&) const = default;
};

// What happens to a gradient with NaN or infinity.
enum class NonFinitePolicy : std::uint8_t {
  kRejectRow = 0,  // that row is skipped and counted; the rest is applied
  kRaise,          // the whole push is rejected with kNonFinite, nothing is applied
};

// How a table stores the values of its rows (table/row_codec.h). Optimizer state and all
// calculations are float32.
enum class RowDtype : std::uint8_t { kFloat32 = 0, kBf16, kInt8 };
std::string_view NameOf(RowDtype dtype);

struct SparseSpec {
  std::string name;
  std::uint32_t dim = 0;  // 1 .. kMaxDim
  std::uint64_t seed = 0;
  InitializerSpec initializer;
  OptimizerSpec optimizer;
  AdmissionSpec admission;
  EvictionSpec eviction;
  NonFinitePolicy non_finite = NonFinitePolicy::kRejectRow;
  // Bookkeeping stored with each row, 4 bytes each (count and dirty share one word). A rule above
  // that needs one enables it.
  bool track_count = false;
  bool track_step = false;
  bool track_seconds = false;
  bool track_dirty = false;
  RowDtype row_dtype = RowDtype::kFloat32;

  bool keeps_count() const { return track_count || eviction.min_count > 0; }
  bool keeps_step() const { return track_step || eviction.untouched_steps > 0; }
  bool keeps_seconds() const { return track_seconds || eviction.untouched_seconds > 0; }

  // kInvalidArgument naming the field, what was found and what was expected.
  Status Validate() const;
  bool operator==(const SparseSpec&) const = default;
};

struct DenseSpec {
  std::string name;
  std::uint64_t size = 0;   // number of float32 elements, > 0
  OptimizerSpec optimizer;  // any kind but row-wise adagrad, which needs rows
  NonFinitePolicy non_finite =
      NonFinitePolicy::kRaise;          // kRejectRow: the push is skipped and counted
  std::uint64_t min_block_size = 8192;  // elements per server; fewer are not worth another server
  Status Validate() const;
  bool operator==(const DenseSpec&) const = default;
};

// The first field in which two specs differ, e.g. "optimizer.beta2 is 0.999, expected 0.99"; empty
// if they agree. Learning rates are not compared: they change while running.
std::string DescribeDifference(const SparseSpec& have, const SparseSpec& asked);
std::string DescribeDifference(const DenseSpec& have, const DenseSpec& asked);

}  // namespace sparsefleet
