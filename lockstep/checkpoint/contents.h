// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/comm/named_tensor.h"

namespace lockstep::checkpoint {

class EvenShares;

/// One file that a rank is going to save: tensors, or a JSON value.
struct FileContents {
  std::string name;
  NamedTensors tensors;
  std::map<std::string, std::string> metadata;
  std::optional<nlohmann::json> json;
};

/// What one rank saves, put together before anything is written, so that writing it can be left to
/// another thread. Holds the tensors themselves until `copy_to_host`. Thread safety: none.
class Contents {
 public:
  /// See Writer::add_tensors and add_json.
  void add_tensors(
      std::string file_name,
      NamedTensors tensors,
      std::map<std::string, std::string> metadata = {});
  void add_json(std::string file_name, nlohmann::json value);
  /// A set of tensors that all ranks hold alike (a TensorSet when read): this rank adds the part of
  /// them that `shares` deals out to its writers, `writers_per_rank` of them from
  /// rank * writers_per_rank on. All ranks must call it in the same order.
  void add_shared(
      const std::string& stem,
      const NamedTensors& tensors,
      int rank,
      size_t writers_per_rank,
      EvenShares& shares);
  /// The files of `other`, behind these.
  void append(Contents other);
  /// Something every rank must say the same of, or the save is refused.
  void must_agree(const std::string& what, const std::string& value);
  /// Makes the save fail on every rank with `why`. The first call counts.
  void fail(const std::string& why);

  const std::vector<FileContents>& files() const { return files_; }
  const std::map<std::string, std::string>& agreed() const { return agreed_; }
  const std::string& failure() const { return failure_; }
  /// Of all tensors.
  int64_t tensor_bytes() const;

  /// From here on the tensors are copies in host memory, made into those of `former`, an earlier
  /// copy whose memory is not needed any more, where shape and dtype fit.
  void copy_to_host(const Contents& former);

 private:
  std::vector<FileContents> files_;
  std::map<std::string, std::string> agreed_;
  std::string failure_;
};

}  // namespace lockstep::checkpoint
