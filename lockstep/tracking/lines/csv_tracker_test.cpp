// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/lines/csv_tracker.h"

#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/tracking/test_folder.h"

namespace lockstep::tracking {
namespace {

using testing::ElementsAre;

class Csv : public testing::Test {
 protected:
  std::filesystem::path folder() const { return folder_.path() / "run"; }
  std::vector<std::string> lines(const std::string& file) const {
    return lines_of(folder() / file);
  }
  TestFolder folder_;
};

TEST_F(Csv, WritesOneFileACurveUnderItsLastName) {
  CsvTracker tracker(folder());
  tracker.log({{"Train/Samples/lr", 0.1}, {"loss", 2}}, 8);
  tracker.log({{"loss", 1.0 / 3}}, 16);
  EXPECT_THAT(lines("Train_Samples_lr.csv"), ElementsAre("step,lr", "8,0.1"));
  EXPECT_THAT(lines("loss.csv"), ElementsAre("step,loss", "8,2", "16,0.3333333333333333"));
}

TEST_F(Csv, AppendsToExistingFiles) {
  { CsvTracker(folder()).log({{"loss", 2}}, 1); }
  std::ofstream(folder() / "loss.csv", std::ios::app) << "2,1.";  // Torn.
  CsvTracker(folder()).log({{"loss", 1}}, 2);
  EXPECT_THAT(lines("loss.csv"), ElementsAre("step,loss", "1,2", "2,1.", "2,1"));
}

TEST_F(Csv, WritesNaNAndInfinity) {
  CsvTracker(folder()).log({{"a", std::numeric_limits<double>::quiet_NaN()}}, 1);
  CsvTracker(folder()).log({{"a", -std::numeric_limits<double>::infinity()}}, 2);
  EXPECT_THAT(lines("a.csv"), ElementsAre("step,a", "1,NaN", "2,-Infinity"));
}

TEST_F(Csv, SaysWhereItCannotWrite) {
  std::ofstream(folder_.path() / "run") << "a file";
  EXPECT_THROW(CsvTracker(folder() / "below"), ConfigError);
}

}  // namespace
}  // namespace lockstep::tracking
