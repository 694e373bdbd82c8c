// A group member in a body: the start of round and clock messages. Header only.
// Format: docs/wire_format.md.
#pragma once

#include "store/round_member.h"
#include "transport/body.h"

namespace sparsefleet {

inline void PutMember(BodyWriter& out, const RoundMember& member) {
  out.PutString(member.group);
  out.Put(member.rank);
  out.Put(member.size);
  out.Put<std::uint8_t>(member.continue_without_lost);
}

inline RoundMember GetMember(BodyReader& in) {
  RoundMember member;
  member.group = in.GetString(kMaxGroupNameBytes);
  member.rank = in.Get<std::uint32_t>();
  member.size = in.Get<std::uint32_t>();
  member.continue_without_lost = in.GetBool();
  return member;
}

}  // namespace sparsefleet
