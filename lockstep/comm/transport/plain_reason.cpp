// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/transport/plain_reason.h"

#include <array>
#include <regex>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/base/log.h"

namespace lockstep::comm {
namespace {

/// A phrase of Gloo or of the system, and its meaning.
struct Meaning {
  std::string_view phrase;
  std::string_view means;
};

constexpr std::array<Meaning, 9> kMeanings = {{
    {"Connection closed by peer", "was closed"},
    {"Connection reset by peer", "was reset"},
    {"Broken pipe", "was closed"},
    {"Application timeout caused pair closure", "was closed after a timeout"},
    {"Socket closed", "was closed"},
    {"Connection refused", "was refused"},
    {"No route to host", "has no route"},
    {"Network is unreachable", "has no route"},
    {"Timed out waiting", "delivered no data in time"},
}};

/// Returns the address in "[10.0.0.2]:52100", or nothing.
std::string address_in(const std::string& text) {
  static const std::regex address(R"(\[([0-9a-fA-F:.]+)\]:\d+)");
  std::smatch found;
  return std::regex_search(text, found, address) ? found[1].str() : "";
}

/// Removes "[path:line] " at the start, further lines, and the sentences after the first.
std::string first_sentence(std::string text) {
  static const std::regex source(R"(^(\[[^\]]*\]\s*)+)");
  text = std::regex_replace(text.substr(0, text.find('\n')), source, "");
  const size_t end = text.find(". ");
  return text.substr(0, end == std::string::npos ? text.size() : end);
}

}  // namespace

std::string plain_reason(const std::string& text, int rank) {
  log_debug("a connection reported: " + text);
  for (const Meaning& meaning : kMeanings) {
    if (text.find(meaning.phrase) != std::string::npos) {
      const std::string address = address_in(text);
      if (address.empty() && rank < 0) {
        return fmt::format("a connection {}", meaning.means);
      }
      const std::string peer = rank < 0          ? address
                               : address.empty() ? fmt::format("rank {}", rank)
                                                 : fmt::format("rank {} at {}", rank, address);
      return fmt::format("the connection to {} {}", peer, meaning.means);
    }
  }
  return first_sentence(text);
}

}  // namespace lockstep::comm
