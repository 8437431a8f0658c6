// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/tensorboard/tfevents.h"

#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/tracking/test_folder.h"
#include "lockstep/tracking/values/histogram.h"

namespace lockstep::tracking::tfevents {
namespace {

using nlohmann::json;

std::string hex(const std::string& bytes) {
  const char* digits = "0123456789abcdef";
  std::string text;
  for (char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += digits[byte >> 4U];
    text += digits[byte & 0xfU];
  }
  return text;
}

// tests/tracking/make_fixtures.py made the fixtures with TensorBoard's own protobuf classes and
// record writer. Maps and repeated fields are in the order of names.
TEST(TfEvents, FramesARecordAsTfRecordDoes) {
  EXPECT_EQ(hex(frame_record("abc")), "0300000000000000b099490e6162636e57f121");
  EXPECT_EQ(hex(frame_record("")), "000000000000000029039807d8ea82a2");
  EXPECT_EQ(
      records_of(frame_record("abc") + frame_record("")), (std::vector<std::string>{"abc", ""}));
}

TEST(TfEvents, FileVersion) {
  EXPECT_EQ(hex(file_version(1.5)), "09000000000000f83f1a0d627261696e2e4576656e743a32");
}

TEST(TfEvents, Scalars) {
  EXPECT_EQ(
      hex(scalars(1.5, 300, {{"loss", 0.25}, {"train/accuracy", 1.0 / 3}})),
      "09000000000000f83f10ac022a240a0b0a046c6f7373150000803e0a150a0e747261696e2f616363"
      "757261637915abaaaa3e");
}

TEST(TfEvents, ScalarsThatAreNotFiniteOrTooGreat) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(
      hex(scalars(1.5, 1, {{"a", infinity}, {"b", -infinity}, {"c", 1e300}, {"d", -1e300}})),
      "09000000000000f83f10012a280a080a0161150000807f0a080a016215000080ff0a080a01631500"
      "00807f0a080a016415000080ff");
  EXPECT_NE(hex(scalars(1.5, 1, {{"a", std::nan("")}})).find("c07f"), std::string::npos);
}

TEST(TfEvents, Text) {
  EXPECT_EQ(
      hex(text(1.5, 0, {{"config", "# lr"}})),
      "09000000000000f83f2a310a2f0a13636f6e6669672f746578745f73756d6d617279420e08071204"
      "12020801420423206c724a080a060a0474657874");
}

TEST(TfEvents, TextOfAStep) {
  EXPECT_EQ(
      hex(text(1.5, 7, {{"note", "hello"}})),
      "09000000000000f83f10072a300a2e0a116e6f74652f746578745f73756d6d617279420f08071204"
      "12020801420568656c6c6f4a080a060a0474657874");
}

TEST(TfEvents, Histograms) {
  const Histogram histogram{3, 1, 3, 6, 14, 0, {1, 2, 3}, {1, 2}};
  EXPECT_EQ(
      hex(histograms(1.5, 2, {{"w", histogram}})),
      "09000000000000f83f10022a580a560a01772a5109000000000000f03f1100000000000008401900"
      "00000000000840210000000000001840290000000000002c40321000000000000000400000000000"
      "0008403a10000000000000f03f0000000000000040");
}

const json kHParams = {{"amp", true}, {"lr", 0.1}, {"model", "cnn"}};

TEST(TfEvents, SessionStart) {
  EXPECT_EQ(
      hex(session_start(1.5, kHParams)),
      "09000000000000f83f2a660a640a1c5f68706172616d735f2f73657373696f6e5f73746172745f69"
      "6e666f4a440a420a0768706172616d7312371a350a090a03616d70120220010a0f0a026c72120911"
      "9a9999999999b93f0a0e0a056d6f64656c12051a03636e6e29000000000000f83f");
}

TEST(TfEvents, Experiment) {
  EXPECT_EQ(
      hex(experiment(1.5, kHParams, {"accuracy", "loss"})),
      "09000000000000f83f2a660a640a145f68706172616d735f2f6578706572696d656e744a4c0a4a0a"
      "0768706172616d73123f123d19000000000000f83f22070a03616d70200222060a026c7220032209"
      "0a056d6f64656c20012a0c0a0a120861636375726163792a080a0612046c6f7373");
}

TEST(TfEvents, SessionEnd) {
  EXPECT_EQ(
      hex(session_end(1.5, RunStatus::kFinished)),
      "09000000000000f83f2a3a0a380a1a5f68706172616d735f2f73657373696f6e5f656e645f696e66"
      "6f4a1a0a180a0768706172616d73120d220b080111000000000000f83f");
  EXPECT_EQ(
      hex(session_end(1.5, RunStatus::kFailed)),
      "09000000000000f83f2a3a0a380a1a5f68706172616d735f2f73657373696f6e5f656e645f696e66"
      "6f4a1a0a180a0768706172616d73120d220b080211000000000000f83f");
  EXPECT_EQ(
      hex(session_end(1.5, RunStatus::kKilled)),
      "09000000000000f83f2a3a0a380a1a5f68706172616d735f2f73657373696f6e5f656e645f696e66"
      "6f4a1a0a180a0768706172616d73120d220b080211000000000000f83f");
}

}  // namespace
}  // namespace lockstep::tracking::tfevents
