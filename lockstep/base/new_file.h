// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/base/unique_fd.h"

namespace lockstep {

/// A small file that is there whole, or not at all: written under a name that nobody looks for,
/// then renamed; gone, if it was not. For its owner alone (0600). A checkpoint's files, which are
/// large and committed together, have storage/output_file.h.
///
/// Thread safety: none.
class NewFile {
 public:
  /// To become `target`. Error, naming it, if its folder takes no file.
  explicit NewFile(const std::filesystem::path& target);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  /// Returns when the disk has it. Error, naming the file, if it cannot be written.
  void write(const std::string& text) const;
  /// False if the name is taken and `replace` is not set. Error if the disk says no.
  bool rename_to(const std::filesystem::path& target, bool replace);

 private:
  std::string name_;
  UniqueFd file_;
  bool renamed_ = false;
};

}  // namespace lockstep
