// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline/tensor_messages.h"

#include <chrono>

#include <gmock/gmock.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"

namespace lockstep::pipeline {
namespace {

using testing::HasSubstr;

TEST(PipelineTensorMessages, CarryAnyShapeAndDtype) {
  const std::vector<at::Tensor> tensors = {
      at::arange(6, at::kDouble).reshape({2, 3}).t(),
      at::arange(4, at::kLong),
      at::full({}, 2.5, at::kBFloat16),
      at::empty({0, 7}),
      at::ones(std::vector<int64_t>(12, 1)),
      at::ones({2}, at::kBool),
      at::ones({3}).requires_grad_(),
      at::Tensor()};
  ranks(2, [&](const Group& group) {
    TensorMessages messages(group, at::kCPU);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const int tag = static_cast<int>(i);
      if (group.rank() == 0) {
        messages.send(tensors[i], 1, tag);
      } else {
        messages.receive(0, tag);
      }
    }
    for (size_t i = tensors.size(); group.rank() == 1 && i-- > 0;) {
      const at::Tensor got = messages.take(static_cast<int>(i));
      ASSERT_EQ(got.defined(), tensors[i].defined());
      if (got.defined()) {
        EXPECT_EQ(got.scalar_type(), tensors[i].scalar_type());
        EXPECT_EQ(got.requires_grad(), tensors[i].requires_grad());
        EXPECT_TRUE(got.equal(tensors[i]));
      }
    }
    messages.finish();
  });
}

TEST(PipelineTensorMessages, CarryAnyNumberOfTensors) {
  const std::vector<std::vector<at::Tensor>> messages_sent = {
      {at::arange(3), at::Tensor(), at::ones({2, 2}).requires_grad_()}, {}, {at::ones({1})}};
  ranks(2, [&](const Group& group) {
    TensorMessages messages(group, at::kCPU);
    for (size_t i = 0; i < messages_sent.size(); ++i) {
      const int tag = static_cast<int>(i);
      if (group.rank() == 0) {
        messages.send(messages_sent[i], 1, tag);
      } else {
        messages.receive(0, tag);
      }
    }
    for (size_t i = messages_sent.size(); group.rank() == 1 && i-- > 0;) {
      const Values got = messages.take(static_cast<int>(i));
      ASSERT_EQ(got.tensors.size(), messages_sent[i].size());
      for (size_t j = 0; j < got.tensors.size(); ++j) {
        ASSERT_EQ(got.tensors[j].defined(), messages_sent[i][j].defined());
        if (got.tensors[j].defined()) {
          EXPECT_TRUE(got.tensors[j].equal(messages_sent[i][j]));
          EXPECT_EQ(got.tensors[j].requires_grad(), messages_sent[i][j].requires_grad());
        }
      }
    }
    messages.finish();
  });
}

TEST(PipelineTensorMessages, CrossEachOther) {
  ranks(2, [](const Group& group) {
    TensorMessages messages(group, at::kCPU);
    const int peer = 1 - group.rank();
    for (int tag = 0; tag < 20; tag += 2) {
      // Both follow one order: first the message of rank 0, then that of rank 1.
      for (const int sender : {0, 1}) {
        if (sender == group.rank()) {
          messages.send(at::full({tag + 1}, tag), peer, tag + sender);
        } else {
          messages.receive(peer, tag + sender);
        }
      }
    }
    for (int tag = 0; tag < 20; tag += 2) {
      const at::Tensor got = messages.take(tag + peer);
      EXPECT_TRUE(got.equal(at::full({tag + 1}, tag)));
    }
    messages.finish();
  });
}

TEST(PipelineTensorMessages, RefuseTooManyDimensions) {
  try {
    ranks(2, [](const Group& group) {
      TensorMessages messages(group, at::kCPU);
      if (group.rank() == 0) {
        messages.send(at::ones(std::vector<int64_t>(13, 1)), 1, 0);
      } else {
        messages.receive(0, 0);
        messages.take(0);
      }
    });
    ADD_FAILURE() << "13 dimensions were sent";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has 13 dimensions; expected at most 12"));
  }
}

TEST(PipelineTensorMessages, EndWithAnErrorIfAMessageIsMissing) {
  // Both ranks live, so only the timeout ends the wait for a message that nobody sends.
  EXPECT_THROW(
      ranks(
          2,
          [](Group group) {
            TensorMessages messages(group, at::kCPU);
            if (group.rank() == 1) {
              messages.receive(0, 0);
              messages.take(0);
            } else {
              group.barrier();
            }
          },
          std::chrono::milliseconds(300)),
      CommError);
}

TEST(PipelineTensorMessages, EndWithAnErrorIfAnotherMessageArrives) {
  try {
    ranks(2, [](const Group& group) {
      TensorMessages messages(group, at::kCPU);
      if (group.rank() == 0) {
        messages.send(at::ones({2}), 1, 6);
        messages.finish();
      } else {
        messages.receive(0, 5);
        messages.take(5);
      }
    });
    ADD_FAILURE() << "the wrong message was taken";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tag"));
  }
}

}  // namespace
}  // namespace lockstep::pipeline
