// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/transport/flight.h"

#include <algorithm>
#include <array>

#include <c10/core/ScalarType.h>

#include "lockstep/watch/flight_recorder.h"

namespace lockstep::comm {
namespace {

using watch::FlightRecorder;

constexpr uint64_t kNotRecorded = ~uint64_t{0};

thread_local int pauses = 0;

std::array<char, 20> dtype_text(int64_t dtype) {
  auto text = watch::short_text<20>(c10::toString(static_cast<c10::ScalarType>(dtype)));
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

watch::Operation operation_of(const Collective& collective, uint64_t group, int64_t sequence) {
  const Fingerprint fingerprint = fingerprint_of(collective, sequence);
  watch::Operation operation;
  operation.group = group;
  operation.sequence = sequence;
  operation.name = watch::short_text<operation.name.size()>(name_of(collective.op));
  switch (collective.op) {
    case Op::kAllReduce:
    case Op::kReduceScatter:
      operation.reduce =
          watch::short_text<operation.reduce.size()>(lockstep::name_of(collective.reduce));
      break;
    case Op::kBroadcast:
    case Op::kGather:
    case Op::kScatter:
    case Op::kSend:
    case Op::kRecv:
      operation.peer = collective.root;
      break;
    default:
      break;
  }
  operation.call = fingerprint.call;
  operation.dims = static_cast<int32_t>(fingerprint.dims);
  if (fingerprint.dims >= 0) {
    operation.dtype = dtype_text(fingerprint.dtype);
    std::copy_n(fingerprint.sizes.begin(), operation.sizes.size(), operation.sizes.begin());
  }
  return operation;
}

}  // namespace

FlightEntry::FlightEntry(const Collective& collective, uint64_t group, int64_t sequence)
    : number_(
          pauses > 0 ? kNotRecorded
                     : FlightRecorder::process().issue(operation_of(collective, group, sequence))),
      observer_(pauses > 0 ? nullptr : collective.observer) {}

void FlightEntry::begin() const {
  if (number_ != kNotRecorded) {
    FlightRecorder::process().start(number_);
  }
  if (observer_) {
    observer_->begin();
  }
}

void FlightEntry::end(bool succeeded, std::optional<double> measured_ms) const {
  if (number_ != kNotRecorded) {
    FlightRecorder::process().end(number_, succeeded);
  }
  if (observer_) {
    observer_->end(succeeded, measured_ms);
  }
}

FlightRecordingPause::FlightRecordingPause() {
  ++pauses;
}

FlightRecordingPause::~FlightRecordingPause() {
  --pauses;
}

uint64_t flight_group(uint64_t parent, int64_t split, int color) {
  // Any hash will do, as long as all members compute the same; 0 is the group of all ranks.
  uint64_t id = parent * 0x9e3779b97f4a7c15U + static_cast<uint64_t>(split) * 0xbf58476d1ce4e5b9U +
                static_cast<uint64_t>(color) * 0x94d049bb133111ebU + 1;
  id ^= id >> 29U;
  return id == watch::Operation::kWorld ? 1 : id;
}

}  // namespace lockstep::comm
