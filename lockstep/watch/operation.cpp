// SPDX-License-Identifier: Apache-2.0
#include "lockstep/watch/operation.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::watch {
namespace {

std::string shape_of(const Operation& operation) {
  const auto shown = std::clamp<int64_t>(operation.dims, 0, Operation::kSizes);
  const auto* begin = operation.sizes.begin();
  return fmt::format(
      "{}[{}{}]",
      text_of(operation.dtype),
      fmt::join(begin, begin + shown, ", "),
      operation.dims > shown ? ", ..." : "");
}

}  // namespace

const char* name_of(Stage stage) {
  switch (stage) {
    case Stage::kIssued:
      return "issued";
    case Stage::kRunning:
      return "running";
    case Stage::kDone:
      return "done";
    case Stage::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string Operation::describe() const {
  const std::string_view what = text_of(name);
  std::string text(what);
  if (!text_of(reduce).empty()) {
    text += fmt::format("({})", text_of(reduce));
  }
  if (peer >= 0 && (what == "send" || what == "recv")) {
    text += fmt::format(" {} rank {}", what == "send" ? "to" : "from", peer);
  } else if (peer >= 0) {
    text += fmt::format(" with root {}", peer);
  }
  if (dims >= 0) {
    text += " of " + shape_of(*this);
  }
  if (!text_of(call).empty()) {
    text += fmt::format(" in {}", text_of(call));
  }
  return text;
}

}  // namespace lockstep::watch
