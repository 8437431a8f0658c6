// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/dataset/fashion_mnist.h"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

std::string find_file(const std::string& root, const std::string& name) {
  for (const char* suffix : {".gz", ""}) {
    std::string path = (std::filesystem::path(root) / (name + suffix)).string();
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) {
      return path;
    }
  }
  throw ConfigError(
      "fashion_mnist",
      fmt::format(
          "Fashion-MNIST is missing; expected {} or {}.gz in '{}'; try apt-get install "
          "dataset-fashion-mnist, which puts it in {}",
          name,
          name,
          root,
          kFashionMnistRoot));
}

}  // namespace

IdxImages fashion_mnist(
    FashionMnistSplit split, const std::string& root, const IdxImagesOptions& options) {
  const std::string prefix = split == FashionMnistSplit::kTrain ? "train" : "t10k";
  return {
      find_file(root, prefix + "-images-idx3-ubyte"),
      find_file(root, prefix + "-labels-idx1-ubyte"),
      options};
}

}  // namespace lockstep::data
