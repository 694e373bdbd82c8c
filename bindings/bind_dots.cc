// Operators on the distinct rows of tables, and their gradients: dot products, sums of bags.
// Every call releases the GIL. Letters: B groups of pairs, K pairs in each, D row width, U and V
// distinct rows of the left and the right side.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bind.h"
#include "merge/row_bags.h"
#include "merge/row_dots.h"
#include "merge/unique.h"
#include "raise.h"
#include "status/status.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsefleet::python {
namespace {

using Places = Array<const std::uint32_t>;
using Sums = std::optional<Matrix<float>>;

std::string ShapeText(const Matrix<const float>& rows) {
  return "[" + std::to_string(rows.shape(0)) + ", " + std::to_string(rows.shape(1)) + "]";
}

template <typename Rows>
Status CheckSide(const Rows& rows, const Places& inverse) {
  const std::size_t count = rows.shape(0);
  const auto places = SpanOf(inverse);
  const auto beyond = std::ranges::find_if(
      places, [count](std::uint32_t place) { return place >= count && place != kPaddingPlace; });
  if (beyond == places.end()) return Status::Ok();
  return {Code::kShapeMismatch,
          "inverse names row " + std::to_string(*beyond) + " of " + std::to_string(count)};
}

// The two sides of a call and its values per pair, one for each place of the right side.
struct Pairs {
  const Matrix<const float>& left;
  const Places& left_inverse;
  const Matrix<const float>& right;
  const Places& right_inverse;

  RowSide LeftSide() const { return {{left.data(), left.size()}, SpanOf(left_inverse)}; }
  RowSide RightSide() const { return {{right.data(), right.size()}, SpanOf(right_inverse)}; }
  std::size_t dim() const { return left.shape(1); }

  Status Check(std::size_t num_products) const {
    const std::size_t groups = left_inverse.size();
    const std::size_t pairs = right_inverse.size();
    const bool are_groups = groups == 0 ? pairs == 0 : pairs % groups == 0;
    if (left.shape(1) != right.shape(1) || !are_groups || num_products != pairs) {
      return {Code::kShapeMismatch, "rows " + ShapeText(left) + " with " + std::to_string(groups) +
                                        " places, rows " + ShapeText(right) + " with " +
                                        std::to_string(pairs) + " and " +
                                        std::to_string(num_products) + " products do not match"};
    }
    if (Status status = CheckSide(left, left_inverse); !status.ok()) return status;
    return CheckSide(right, right_inverse);
  }
};

void Dots(const Matrix<const float>& left, const Places& left_inverse,
          const Matrix<const float>& right, const Places& right_inverse, const Array<float>& out) {
  const Pairs pairs{left, left_inverse, right, right_inverse};
  Status status;
  {
    nb::gil_scoped_release release;
    status = pairs.Check(out.size());
    if (status.ok()) DotRows(pairs.LeftSide(), pairs.RightSide(), pairs.dim(), SpanOf(out));
  }
  Check(status);
}

// Empty without sums.
Status CheckSums(const Sums& sums, const Matrix<const float>& rows) {
  if (!sums || (sums->shape(0) == rows.shape(0) && sums->shape(1) == rows.shape(1))) {
    return Status::Ok();
  }
  return {Code::kShapeMismatch, "sums [" + std::to_string(sums->shape(0)) + ", " +
                                    std::to_string(sums->shape(1)) + "] do not have the shape of " +
                                    "the rows " + ShapeText(rows)};
}

std::span<float> SpanOfSums(const Sums& sums) {
  return sums ? std::span<float>(sums->data(), sums->size()) : std::span<float>();
}

void SumGradients(const Array<const float>& gradients, const Matrix<const float>& left,
                  const Places& left_inverse, const Matrix<const float>& right,
                  const Places& right_inverse, const Sums& left_sums, const Sums& right_sums) {
  const Pairs pairs{left, left_inverse, right, right_inverse};
  Status status;
  {
    nb::gil_scoped_release release;
    status = pairs.Check(gradients.size());
    if (status.ok()) status = CheckSums(left_sums, left);
    if (status.ok()) status = CheckSums(right_sums, right);
    if (status.ok()) {
      SumDotGradients(SpanOf(gradients), pairs.LeftSide(), pairs.RightSide(), pairs.dim(),
                      SpanOfSums(left_sums), SpanOfSums(right_sums));
    }
  }
  Check(status);
}

// One feature of a call: rows or their sums, the place of each id, and the length of each bag.
template <typename Rows>
using Feature = std::tuple<Rows, Places, Array<const std::int64_t>>;

template <typename Rows>
Status CheckBags(const std::vector<Feature<Rows>>& features, std::size_t num_bags,
                 std::size_t width) {
  std::size_t dims = 0;
  for (const auto& [rows, places, lengths] : features) {
    std::size_t total = 0;
    for (const std::int64_t length : SpanOf(lengths)) {
      if (length < 0 || static_cast<std::size_t>(length) > places.size() - total) {
        return {Code::kShapeMismatch, "bags do not match " + std::to_string(places.size()) +
                                          " ids: a length is " + std::to_string(length)};
      }
      total += static_cast<std::size_t>(length);
    }
    if (lengths.size() != num_bags || total != places.size()) {
      return {Code::kShapeMismatch, std::to_string(lengths.size()) + " bags of " +
                                        std::to_string(total) + " ids, expected " +
                                        std::to_string(num_bags) + " bags of " +
                                        std::to_string(places.size())};
    }
    if (Status status = CheckSide(rows, places); !status.ok()) return status;
    dims += rows.shape(1);
  }
  if (dims == width) return Status::Ok();
  return {Code::kShapeMismatch, "features of width " + std::to_string(dims) +
                                    " in total do not match " + std::to_string(width) + " columns"};
}

template <typename Rows>
RowBags BagsOf(const Feature<Rows>& feature) {
  const auto& [rows, places, lengths] = feature;
  return {{{rows.data(), rows.size()}, SpanOf(places)}, SpanOf(lengths), rows.shape(1)};
}

void SumAllBags(const std::vector<Feature<Matrix<const float>>>& features,
                const Matrix<float>& out) {
  Status status;
  {
    nb::gil_scoped_release release;
    status = CheckBags(features, out.shape(0), out.shape(1));
    float* column = out.data();
    for (const auto& feature : features) {
      if (!status.ok()) break;
      const RowBags bags = BagsOf(feature);
      SumBags(bags, out.shape(1), column);
      column += bags.dim;
    }
  }
  Check(status);
}

void AddAllBagGradients(const Matrix<const float>& gradients,
                        const std::vector<Feature<Matrix<float>>>& features) {
  Status status;
  {
    nb::gil_scoped_release release;
    status = CheckBags(features, gradients.shape(0), gradients.shape(1));
    const float* column = gradients.data();
    for (const auto& feature : features) {
      if (!status.ok()) break;
      const RowBags bags = BagsOf(feature);
      const Matrix<float>& sums = std::get<0>(feature);
      AddBagGradients(bags, gradients.shape(1), column, {sums.data(), sums.size()});
      column += bags.dim;
    }
  }
  Check(status);
}

}  // namespace

void BindDots(nb::module_& m) {
  m.def("dot_rows", &Dots, "left"_a, "left_inverse"_a, "right"_a, "right_inverse"_a, "out"_a,
        "out[i * K + k] (float32[B * K]) = left[left_inverse[i]] (float32[U, D]) times "
        "right[right_inverse[i * K + k]] (float32[V, D]); 0 with PADDING_PLACE.");
  m.def(
      "sum_dot_gradients", &SumGradients, "gradients"_a, "left"_a, "left_inverse"_a, "right"_a,
      "right_inverse"_a, "left_sums"_a.none(), "right_sums"_a.none(),
      "Given gradients of dot_rows's results (float32[B * K]), sums those of the rows into arrays "
      "of their shape, which start from zero; None leaves a side out. Sides of one table may "
      "share their sums.");
  m.def("sum_bags", &SumAllBags, "features"_a, "out"_a,
        "Sums rows by bag, the features side by side in out (float32[B, W]). A feature is its rows "
        "(float32[U, D]), the row of each id (uint32[N]) and the length of each bag (int64[B]). "
        "PADDING_PLACE adds nothing.");
  m.def("add_bag_gradients", &AddAllBagGradients, "gradients"_a, "features"_a,
        "Given gradients of sum_bags's result, adds those of the rows. A feature is as there, but "
        "with sums of gradients in place of rows; features of one table may share their sums.");
}

}  // namespace sparsefleet::python
