// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text/split.h"

#include <algorithm>

namespace lockstep {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace lockstep
