// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text/class_name.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(PlainClassName, HasNeitherNamespaceNorImpl) {
  EXPECT_EQ(plain_class_name("torch::nn::LinearImpl"), "Linear");
  EXPECT_EQ(plain_class_name("Linear"), "Linear");
  EXPECT_EQ(plain_class_name("Impl"), "Impl");
}

}  // namespace
}  // namespace lockstep
