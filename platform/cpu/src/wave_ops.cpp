// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Shuffles and votes, on top of wave_collective.

#include "hip_cpu/device.h"

namespace hip_cpu {

namespace {

template <typename T>
struct Shuffle {
  T value;
  int source_lane;
  T result;
};

template <typename T>
void run_shuffle(void* const* lanes, void* /*context*/) {
  for (int i = 0; i < kWaveSize; ++i) {
    auto* lane = static_cast<Shuffle<T>*>(lanes[i]);
    if (lane == nullptr) continue;
    const auto* source = static_cast<const Shuffle<T>*>(lanes[lane->source_lane & (kWaveSize - 1)]);
    lane->result = source != nullptr ? source->value : T{0};
  }
}

template <typename T>
T shuffle_any(T value, int source_lane, const void* site) {
  Shuffle<T> operand{value, source_lane, T{0}};
  wave_collective(&run_shuffle<T>, &operand, nullptr, site);
  return operand.result;
}

struct Vote {
  bool predicate;
  uint64_t result;
};

void run_ballot(void* const* lanes, void* /*context*/) {
  uint64_t bits = 0;
  for (int i = 0; i < kWaveSize; ++i) {
    const auto* lane = static_cast<const Vote*>(lanes[i]);
    if (lane != nullptr && lane->predicate) bits |= uint64_t{1} << i;
  }
  for (int i = 0; i < kWaveSize; ++i) {
    auto* lane = static_cast<Vote*>(lanes[i]);
    if (lane != nullptr) lane->result = bits;
  }
}

void run_nothing(void* const* /*lanes*/, void* /*context*/) {}

}  // namespace

uint32_t shuffle_bits(uint32_t value, int source_lane, const void* site) {
  return shuffle_any(value, source_lane, site);
}

uint64_t shuffle_bits(uint64_t value, int source_lane, const void* site) {
  return shuffle_any(value, source_lane, site);
}

uint64_t ballot(int predicate, const void* site) {
  Vote operand{predicate != 0, 0};
  wave_collective(&run_ballot, &operand, nullptr, site);
  return operand.result;
}

void wave_barrier(const void* site) { wave_collective(&run_nothing, nullptr, nullptr, site); }

}  // namespace hip_cpu
