// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/data/dataset/idx_images.h"

namespace lockstep::data {

enum class FashionMnistSplit {
  kTrain,  ///< 60,000 images.
  kTest,   ///< 10,000 images.
};

/// The folder of the files in Debian's package dataset-fashion-mnist.
inline constexpr const char* kFashionMnistRoot = "/usr/share/datasets/fashion-mnist";

/// Opens Fashion-MNIST: 28 x 28 grey images of clothes in 10 classes. The default options give the
/// training images mean 0 and variance 1. Reads `{train,t10k}-{images-idx3,labels-idx1}-ubyte` in
/// `root`, with or without `.gz`. Throws ConfigError with the install command if a file is missing.
IdxImages fashion_mnist(
    FashionMnistSplit split,
    const std::string& root = kFashionMnistRoot,
    const IdxImagesOptions& options = {.mean = 0.2860F, .stddev = 0.3530F});

}  // namespace lockstep::data
