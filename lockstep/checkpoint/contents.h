// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep::checkpoint {

class EvenShares;

/// A file that a rank is going to save: tensors, or a JSON value.
struct FileContents {
  std::string name;
  NamedTensors tensors;
  std::map<std::string, std::string> metadata;
  std::shared_ptr<const nlohmann::json> json;  ///< Null for tensors.
};

/// The state that one rank saves, collected before writing, so that another thread can write it.
/// Holds the tensors themselves until `copy_to_host`.
class Contents {
 public:
  /// See Writer::add_tensors and add_json.
  void add_tensors(
      std::string file_name,
      NamedTensors tensors,
      std::map<std::string, std::string> metadata = {});
  void add_json(std::string file_name, nlohmann::json value);
  /// Adds tensors that are equal on all ranks, to be read as a TensorSet. This rank adds the part
  /// that `shares` assigns to its writers: `writers_per_rank` of them from rank * writers_per_rank
  /// on. All ranks must call it in the same order.
  void add_shared(
      const std::string& stem,
      const NamedTensors& tensors,
      int rank,
      size_t writers_per_rank,
      EvenShares& shares);
  /// Appends the files of `other`.
  void append(Contents other);
  /// Makes the save fail unless `value` is equal on every rank.
  void must_agree(const std::string& what, const std::string& value);
  /// Makes the save fail on every rank with `why`. The first call counts.
  void fail(const std::string& why);

  const std::vector<FileContents>& files() const { return files_; }
  const std::map<std::string, std::string>& agreed() const { return agreed_; }
  const std::string& failure() const { return failure_; }
  /// Returns the bytes of all tensors.
  int64_t tensor_bytes() const;

  /// Replaces the tensors by copies in host memory. Reuses the memory of `former`, an earlier copy
  /// that is no longer needed, where shape and dtype match.
  void copy_to_host(const Contents& former);

 private:
  std::vector<FileContents> files_;
  std::map<std::string, std::string> agreed_;
  std::string failure_;
};

}  // namespace lockstep::checkpoint
