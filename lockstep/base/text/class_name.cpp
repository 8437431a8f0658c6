// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text/class_name.h"

namespace lockstep {

std::string plain_class_name(std::string name) {
  const size_t colon = name.rfind("::");
  name = colon == std::string::npos ? name : name.substr(colon + 2);
  const std::string ending = "Impl";
  if (name.size() > ending.size() && name.ends_with(ending)) {
    name.resize(name.size() - ending.size());
  }
  return name;
}

}  // namespace lockstep
