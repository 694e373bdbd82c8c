// Parts of Store that are bound in separate files.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "store/round_member.h"
#include "store_handle.h"

namespace sparsefleet::python {

// A RoundMember that owns its group name.
struct MemberOf {
  std::string group;
  std::uint32_t rank;
  std::uint32_t size;
  bool continue_without_lost;
  RoundMember view() const { return {group, rank, size, continue_without_lost}; }
};

void BindRounds(nanobind::module_& m, nanobind::class_<StoreHandle>& store);
void BindChanges(nanobind::class_<StoreHandle>& store);

}  // namespace sparsefleet::python
