// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/deepspeed_folder.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/storage/model_files.h"
#include "lockstep/storage/test_files.h"

namespace lockstep::storage {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::ThrowsMessage;
namespace fs = std::filesystem;

/// The names of files that DeepSpeed 0.19 writes at ZeRO stage 2 on one rank; nobody reads them.
class DeepspeedFolder : public testing::Test {
 protected:
  DeepspeedFolder() {
    fs::create_directory(tag_);
    for (const char* name :
         {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"}) {
      write_bytes(tag_ / name, "PK");
    }
    write_bytes(folder_ / "latest", "global_step10\n");
    write_bytes(folder_ / "zero_to_fp32.py", "");
  }
  static std::string refusal(const fs::path& folder) {
    const auto error = deepspeed_checkpoint(folder);
    return error ? error->what() : "none";
  }

  TestFolder folder_;
  fs::path tag_ = folder_ / "global_step10";
};

TEST_F(DeepspeedFolder, IsNamedWithTheCommandThatConvertsIt) {
  const std::string command = "run: python " + (folder_ / "zero_to_fp32.py").string() + " " +
                              folder_.path().string() +
                              " OUT --safe_serialization --tag global_step10; then load OUT";
  for (const fs::path& path : {tag_, folder_.path(), tag_ / ""}) {
    EXPECT_THAT(
        refusal(path),
        AllOf(
            HasSubstr("[" + path.string()),
            HasSubstr("is a DeepSpeed checkpoint"),
            HasSubstr("Lockstep reads no pickles"),
            HasSubstr(
                "run: python -m lockstep.deepspeed.convert " + folder_.path().string() +
                " OUT --tag global_step10; then load OUT with the engine's load_checkpoint"),
            HasSubstr(command)));
  }
}

TEST_F(DeepspeedFolder, WithoutTheScriptIsConvertedByTheInstalledOne) {
  fs::remove(folder_ / "zero_to_fp32.py");
  EXPECT_THAT(refusal(tag_), HasSubstr("run: python -m deepspeed.utils.zero_to_fp32 "));
}

TEST_F(DeepspeedFolder, OfARunWithoutZeroIsConvertedByTorch) {
  fs::remove(tag_ / "zero_pp_rank_0_mp_rank_00_optim_states.pt");
  EXPECT_THAT(
      refusal(tag_),
      AllOf(
          HasSubstr("weights_only=True)['module']"),
          HasSubstr((tag_ / "mp_rank_00_model_states.pt").string()),
          Not(HasSubstr("zero_to_fp32"))));
}

TEST_F(DeepspeedFolder, IsNamedByEveryReaderOfCheckpointsAndWeights) {
  const auto says = ThrowsMessage<CheckpointError>(HasSubstr("is a DeepSpeed checkpoint"));
  for (const fs::path& path : {tag_, folder_.path()}) {
    EXPECT_THAT([&] { const StoredCheckpoint opened(path); }, says);
    EXPECT_THAT([&] { open_model_files(path); }, says);
  }
  EXPECT_THAT(list_checkpoints(folder_.path()).at(0).why, HasSubstr("is a DeepSpeed checkpoint"));
}

TEST_F(DeepspeedFolder, IsNotAnyOtherFolder) {
  const fs::path own = folder_ / "own";
  commit_checkpoint(own, nlohmann::json::object());
  EXPECT_EQ(refusal(own), "none");
  EXPECT_EQ(refusal(folder_ / "absent"), "none");
  write_bytes(folder_ / "latest", "own\n");
  EXPECT_EQ(refusal(folder_.path()), "none");
  write_bytes(folder_ / "latest", "../" + folder_.path().filename().string() + "\n");
  EXPECT_EQ(refusal(folder_.path()), "none");
}

TEST_F(DeepspeedFolder, TagsAreTheFoldersWithACheckpoint) {
  commit_checkpoint(folder_ / "global_step5", nlohmann::json::object());
  fs::create_directory(folder_ / "plots");
  EXPECT_THAT(checkpoint_tags(folder_.path()), ElementsAre("global_step5", "global_step10"));
  EXPECT_THAT(checkpoint_tags(folder_ / "absent"), IsEmpty());
}

}  // namespace
}  // namespace lockstep::storage
