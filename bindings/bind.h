// The parts of the module and the array types they share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace sparsefleet::python {

void BindSpecs(nanobind::module_& m);
void BindCommand(nanobind::module_& m);
void BindConversions(nanobind::module_& m);
void BindCut(nanobind::module_& m);
void BindCsv(nanobind::module_& m);
void BindDots(nanobind::module_& m);
void BindMerge(nanobind::module_& m);
void BindPairs(nanobind::module_& m);
void BindParse(nanobind::module_& m);
void BindRagged(nanobind::module_& m);
void BindReplica(nanobind::module_& m);
void BindSender(nanobind::module_& m);
void BindStore(nanobind::module_& m);
void BindServer(nanobind::module_& m);

template <typename T>
using Array = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

template <typename T>
using Matrix = nanobind::ndarray<T, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

template <typename T>
std::span<T> SpanOf(const Array<T>& array) {
  return {array.data(), array.size()};
}

// A NumPy array of this shape that owns `values`.
template <typename T, std::size_t N>
nanobind::object ToNumpy(std::vector<T> values, const std::size_t (&shape)[N]) {
  if (values.empty()) values.resize(1);  // a non-null address for an empty array
  auto held = std::make_unique<std::vector<T>>(std::move(values));
  T* data = held->data();
  nanobind::capsule owner(held.release(),
                          [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, T>(data, N, shape, owner));
}

}  // namespace sparsefleet::python
