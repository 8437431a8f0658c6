// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Everything a training program needs. Our own sources include what they use instead.

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/run_main.h"
#include "lockstep/data/fashion_mnist.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/mapped_tensor.h"
#include "lockstep/data/tensor_dataset.h"
