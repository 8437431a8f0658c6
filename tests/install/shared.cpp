// SPDX-License-Identifier: Apache-2.0
// A shared library that uses lockstep::core and the YAML library inside: an extension of Python or
// another program.
#include <lockstep/config/document/document.h>

size_t items_of(const std::string& text) {
  using lockstep::config::Format;
  return lockstep::config::parse_document("text", text, Format::kYaml).root.items.size();
}
