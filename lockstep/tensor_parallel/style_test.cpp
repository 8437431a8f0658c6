// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor_parallel/style.h"

#include <gmock/gmock.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(TensorStyle, PatternsMatchOnePartForEachStar) {
  EXPECT_TRUE(matches_modules("layers.*.mlp.up", "layers.11.mlp.up"));
  EXPECT_TRUE(matches_modules("head", "head"));
  EXPECT_FALSE(matches_modules("layers.*.up", "layers.11.mlp.up"));
  EXPECT_FALSE(matches_modules("layers.*", "layers"));
}

TEST(TensorStyle, TransformersNamesAreRead) {
  EXPECT_EQ(parse_tensor_style("colwise_rep", "here"), TensorStyle::kColwiseGather);
  EXPECT_EQ(parse_tensor_style("rowwise", "here"), TensorStyle::kRowwise);
  EXPECT_STREQ(tensor_style_name(TensorStyle::kColwiseGather), "colwise_gather");
  try {
    parse_tensor_style("rowise", "here");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("[here] the style 'rowise' is unknown"));
    EXPECT_THAT(error.what(), testing::HasSubstr("rowwise"));
  }
}

}  // namespace
}  // namespace lockstep
