// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/profile/usdt_line_filter.h"

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string>
#include <string_view>

namespace lockstep::internal {
namespace {

constexpr std::string_view kUsdtMark = "USDT:";

/// Passes lines on to another buffer, without those that begin with the mark.
class UsdtFilterBuffer final : public std::streambuf {
 public:
  void pass_to(std::streambuf* target) {
    const std::lock_guard<std::mutex> lock(mutex_);
    flush_beginning();
    target_ = target;
    state_ = State::kBeginning;
  }

 protected:
  int_type overflow(int_type value) override {
    if (!traits_type::eq_int_type(value, traits_type::eof())) {
      const std::lock_guard<std::mutex> lock(mutex_);
      put(traits_type::to_char_type(value));
    }
    return traits_type::not_eof(value);
  }
  std::streamsize xsputn(const char* text, std::streamsize length) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::streamsize i = 0; i < length; ++i) {
      put(text[i]);
    }
    return length;
  }
  int sync() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return target_->pubsync();
  }

 private:
  enum class State { kBeginning, kPassing, kDropping };

  void put(char c) {
    if (state_ == State::kBeginning) {
      beginning_ += c;
      if (beginning_ == kUsdtMark) {
        beginning_.clear();
        state_ = State::kDropping;
      } else if (!kUsdtMark.starts_with(beginning_)) {
        flush_beginning();
        state_ = State::kPassing;
      }
    } else if (state_ == State::kPassing) {
      target_->sputc(c);
    }
    if (c == '\n') {
      state_ = State::kBeginning;
    }
  }

  void flush_beginning() {
    if (!beginning_.empty()) {
      target_->sputn(beginning_.data(), static_cast<std::streamsize>(beginning_.size()));
      beginning_.clear();
    }
  }

  std::mutex mutex_;
  std::streambuf* target_ = nullptr;
  State state_ = State::kBeginning;
  std::string beginning_;  ///< Of a line that may still turn out to have the mark.
};

/// Never destroyed: another thread may be about to write to it.
UsdtFilterBuffer& usdt_filter_buffer() {
  static auto* const buffer = new UsdtFilterBuffer;
  return *buffer;
}

std::atomic<bool> is_filtering = false;

}  // namespace

UsdtLineFilter::UsdtLineFilter() {
  // The first of several filters for all; the buffer must never write to itself.
  if (std::getenv("KINETO_LOG_LEVEL") == nullptr && !is_filtering.exchange(true)) {
    usdt_filter_buffer().pass_to(std::cerr.rdbuf());
    original_ = std::cerr.rdbuf(&usdt_filter_buffer());
  }
}

UsdtLineFilter::~UsdtLineFilter() {
  if (original_ != nullptr) {
    std::cerr.rdbuf(original_);
    usdt_filter_buffer().pass_to(original_);  // Writes what it holds back.
    is_filtering = false;
  }
}

}  // namespace lockstep::internal
