// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text/secrets.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Secrets, AreHiddenByTheVariablesName) {
  EXPECT_EQ(shown_value("MLFLOW_TRACKING_PASSWORD", "s3cret"), kHidden);
  EXPECT_EQ(shown_value("nccl_api_key", "s3cret"), kHidden);
  EXPECT_EQ(shown_value("NCCL_DEBUG", "INFO"), "INFO");
}

TEST(Secrets, OfAUrlAreHiddenByThemselves) {
  EXPECT_EQ(
      shown_value("MLFLOW_TRACKING_URI", "https://me:s3cret@host:1/a@b"),
      "https://(hidden)@host:1/a@b");
  EXPECT_EQ(
      shown_value("URIS", "tcp://a:b@c:1,http://d@e"), "tcp://(hidden)@c:1,http://(hidden)@e");
  EXPECT_EQ(shown_value("URI", "https://host/@"), "https://host/@");
}

}  // namespace
}  // namespace lockstep
