// Convolutions whose groups have few outputs, depthwise ones above all: channel by channel, in the
// lanes of vectors.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/block.h"
#include "kernels/convolution/convolution.h"
#include "math/simd.h"
#include "threads/threads.h"

namespace ec {
namespace {

constexpr int kL = kFloatLanes;
// A tile is kPixels outputs of one line by kVectors vectors of channels: more independent sums than
// the latency of a multiply-add asks for (8), and with the weights fewer than 16 registers.
constexpr int kVectors = 2;
constexpr int kColumns = kVectors * kL;
static_assert(kPanel % kColumns == 0);
constexpr int kPixels = 6;
constexpr int64_t kSerialWork = 100'000;  // multiply-adds below which fork and join cost more
constexpr int64_t kTaskWork = 100'000;
constexpr int64_t kCacheFloats = 24 * 1024 / 4;  // of the first cache

// Whether each group has as many outputs as inputs, and vectors hold whole groups. Then a vector of
// outputs reads one vector of each pixel, whose lanes are permuted once for each input of a group.
bool is_mixed(const Convolution& c) {
  return c.group_in() == c.group_out() && c.group_in() > 1 && kL % c.group_in() == 0;
}

// What a tile of one phase reads, and what all its tiles share.
struct Lines {
  const Convolution& c;
  const ConvPhase& phase;
  const float* x;       // [batch, depth, height, width, planes, channels]; Mixed: without planes
  int64_t planes;       // channels_in of a group
  const float* packed;  // of this phase
  int64_t panel;        // floats from one panel to the next
  const Epilogue& epilogue;
  float* out;
  // Sums are cut to these bounds while they are in registers, which is all that follows the bias
  // where `finished`.
  float least, most;
  bool finished;
  bool mixed;                        // see is_mixed()
  int64_t last_offset[kMaxSpatial];  // the largest of each axis, 0 where it has none
  int64_t inside_begin, inside_end;  // the outputs of a line all of whose taps meet the image
  // Channels that are computed for a whole piece of a line before the next ones: what a tile reads
  // of them, weights and pixels, should still be in the first cache for the next tile.
  int64_t block;

  Lines(const Convolution& c, const ConvPhase& phase, const float* x, int64_t planes,
        const float* packed, int64_t panel, const Epilogue& epilogue, float* out)
      : c(c),
        phase(phase),
        x(x),
        planes(planes),
        packed(packed),
        panel(panel),
        epilogue(epilogue),
        out(out),
        mixed(is_mixed(c)) {
    const bool relu = epilogue.act == Activation::kRelu, relu6 = epilogue.act == Activation::kRelu6;
    finished = epilogue.residual == nullptr && (relu || relu6 || epilogue.act == Activation::kNone);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    least = finished && (relu || relu6) ? 0.0f : -kInfinity;
    most = finished && relu6 ? 6.0f : kInfinity;

    const AxisPhase &d = *phase.axes[0], &h = *phase.axes[1], &w = *phase.axes[2];
    for (int i = 0; i < kMaxSpatial; ++i) {
      const auto& offsets = phase.axes[i]->offsets;
      last_offset[i] = offsets.empty() ? 0 : std::max(offsets.front(), offsets.back());
    }
    const auto lines = static_cast<int64_t>(d.offsets.size() * h.offsets.size());
    const auto taps = static_cast<int64_t>(w.offsets.size());
    const int64_t pixels = taps + kPixels * w.advance;
    const int64_t values = lines * (planes * taps + (mixed ? 1 : planes) * pixels);
    block = std::max(kPanel, kCacheFloats / std::max<int64_t>(1, values) / kPanel * kPanel);

    inside_begin = 0;
    inside_end = w.count;
    if (taps == 0) return;
    const int64_t low = std::min(w.offsets.front(), w.offsets.back());
    const int64_t room = c.axes[2].in - last_offset[2];  // places that the last tap can meet
    inside_begin = std::min(w.count, low < 0 ? (-low + w.advance - 1) / w.advance : 0);
    inside_end =
        std::clamp<int64_t>(room > 0 ? (room - 1) / w.advance + 1 : 0, inside_begin, w.count);
  }
};

// `Pixels` outputs from number j of the line on, with the channels of Vectors vectors from `column`
// on, of which only `valid` are there, less than a vector fewer. Inside, every tap meets the image;
// Whole: vectors of the input may be read even so, since other memory of it is behind; Mixed: see
// is_mixed().
template <int Pixels, int Vectors, bool Inside, bool Whole, bool Mixed>
void run_tile(const Lines& l, int64_t batch, int64_t jd, int64_t jh, int64_t j, int64_t column,
              int64_t valid) {
  const AxisPhase &d = *l.phase.axes[0], &h = *l.phase.axes[1], &w = *l.phase.axes[2];
  const ConvAxis* const axes = l.c.axes;
  const int64_t channels = l.c.channels_out;
  const int64_t pixel = Mixed ? channels : l.planes * channels;
  const int64_t step = w.advance * pixel;
  const auto load_channels = [valid](const float* from, int v) __attribute__((always_inline)) {
    const bool whole = Whole || v + 1 < Vectors;
    return whole ? load(from + v * kL) : load_partial(from + v * kL, valid - v * kL);
  };

  const float* const bias = l.epilogue.bias;
  vf32 sums[Pixels][Vectors];
#pragma GCC unroll 2
  for (int v = 0; v < Vectors; ++v) {
    vf32 start{};
    if (bias != nullptr) {
      const float* const from = bias + column + v * kL;
      start = valid >= (v + 1) * kL ? load(from) : load_partial(from, valid - v * kL);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Pixels; ++r) sums[r][v] = start;
  }
  // Which lane of a pixel each output weighs first; the next plane's is the next one.
  const vi32 own = iota() - iota() % static_cast<int32_t>(Mixed ? l.planes : 1);
  // `count` products for each sum: values `stride` apart (Mixed: planes of the same ones), weights
  // a panel's row apart.
  const auto add = [&](const float* from, const float* weights, int64_t count, int64_t stride,
                       uint32_t there) __attribute__((always_inline)) {
    for (int64_t i = 0; i < count; ++i, from += Mixed ? 0 : stride, weights += kPanel) {
      const vi32 lanes = own + static_cast<int32_t>(i);
      vf32 weight[Vectors];
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) weight[v] = load(weights + v * kL);
#pragma GCC unroll 8
      for (int r = 0; r < Pixels; ++r) {
        if (!Inside && (there >> r & 1) == 0) continue;
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) {
          vf32 value = load_channels(from + r * step, v);
          if constexpr (Mixed) value = permute(value, lanes);
          sums[r][v] = fma(value, weight[v], sums[r][v]);
        }
      }
    }
  };
  const auto taps = static_cast<int64_t>(w.offsets.size());
  const int64_t first = taps > 0 ? j * w.advance + w.offsets[0] : 0;
  const int64_t apart = taps > 1 ? w.offsets[1] - w.offsets[0] : 0;  // of all neighbouring taps
  const int64_t tap_weights = l.planes * kPanel;
  const float* weights = l.packed + column / kPanel * l.panel + column % kPanel;
  for (const int64_t offset_d : d.offsets) {
    const int64_t z = jd * d.advance + offset_d;
    for (const int64_t offset_h : h.offsets) {
      const int64_t y = jh * h.advance + offset_h;
      const float* const row_weights = weights;
      weights += taps * tap_weights;
      if (z < 0 || z >= axes[0].in || y < 0 || y >= axes[1].in) continue;
      const float* const from = l.x +
                                ((batch * axes[0].in + z) * axes[1].in + y) * axes[2].in * pixel +
                                column + first * pixel;
      if constexpr (Inside && !Mixed) {
        if (l.planes == 1) {
          add(from, row_weights, taps, apart * pixel, 0);
          continue;
        }
      }
      for (int64_t t = 0; t < taps; ++t) {
        uint32_t there = 0;  // which of the pixels, as bits
        if constexpr (!Inside) {
#pragma GCC unroll 8
          for (int r = 0; r < Pixels; ++r) {
            const int64_t place = first + t * apart + r * w.advance;
            there |= static_cast<uint32_t>(place >= 0 && place < axes[2].in) << r;
          }
        }
        add(from + t * apart * pixel, row_weights + t * tap_weights, l.planes, channels, there);
      }
    }
  }

  const int64_t z = d.first + jd * d.step, y = h.first + jh * h.step;
  const int64_t at =
      (((batch * axes[0].out + z) * axes[1].out + y) * axes[2].out + w.first + j * w.step) *
          channels +
      column;
  const int64_t apart_out = w.step * channels;
  float* const out = l.out + at;
  const vf32 low = broadcast(l.least), high = broadcast(l.most);
  for (int r = 0; r < Pixels; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      const vf32 value = min(high, max(low, sums[r][v]));  // NaN stays
      if (v + 1 < Vectors || valid == Vectors * kL) {
        store(out + r * apart_out + v * kL, value);
      } else {
        store_partial(out + r * apart_out + v * kL, value, valid - v * kL);
      }
    }
  }
  if (l.finished) return;
  Epilogue rest = l.epilogue;
  rest.ld_residual = apart_out;
  finish_rows(rest, rest.residual == nullptr ? nullptr : rest.residual + at, out, apart_out, Pixels,
              valid);
}

using RunTile = void (*)(const Lines&, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);

// run[vectors - 1][inside][whole][pixels - 1]
template <bool Mixed>
struct TileTable {
  RunTile run[kVectors][2][2][kPixels];
  constexpr TileTable() : TileTable(std::make_integer_sequence<int, kPixels>{}) {}

 private:
  template <int... P>
  explicit constexpr TileTable(std::integer_sequence<int, P...>)
      : run{{{{run_tile<P + 1, 1, false, false, Mixed>...},
              {run_tile<P + 1, 1, false, true, Mixed>...}},
             {{run_tile<P + 1, 1, true, false, Mixed>...},
              {run_tile<P + 1, 1, true, true, Mixed>...}}},
            {{{run_tile<P + 1, 2, false, false, Mixed>...},
              {run_tile<P + 1, 2, false, true, Mixed>...}},
             {{run_tile<P + 1, 2, true, false, Mixed>...},
              {run_tile<P + 1, 2, true, true, Mixed>...}}}} {}
};
constexpr TileTable<false> kTable;
constexpr TileTable<true> kMixedTable;

// The last place of the input that outputs up to number j along axis i may read, after `before`,
// that of the axes in front.
int64_t last_place(const Lines& l, int i, int64_t before, int64_t j) {
  const int64_t in = l.c.axes[i].in, last = j * l.phase.axes[i]->advance + l.last_offset[i];
  return before * in + std::max<int64_t>(0, std::min(last, in - 1));
}

// Outputs [begin, end) of one line, with the channels [first, last).
void run_piece(const Lines& l, int64_t line, int64_t begin, int64_t end, int64_t first,
               int64_t last) {
  const AxisPhase &d = *l.phase.axes[0], &h = *l.phase.axes[1];
  const int64_t jh = line % h.count, jd = line / h.count % d.count;
  const int64_t batch = line / h.count / d.count;
  const int64_t tiles = (end - begin + kPixels - 1) / kPixels;
  const int64_t last_line = last_place(l, 1, last_place(l, 0, batch, jd), jh);
  const int64_t planes = l.mixed ? 1 : l.planes;
  const auto& run = l.mixed ? kMixedTable.run : kTable.run;
  for (int64_t channel = first; channel < last; channel += l.block) {
    const int64_t block_end = std::min(last, channel + l.block);
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t j = begin + (end - begin) * i / tiles;
      const int64_t pixels = begin + (end - begin) * (i + 1) / tiles - j;
      const bool inside = j >= l.inside_begin && j + pixels <= l.inside_end;
      // Channels that may be read from the last plane's first one on, at the tile's last place.
      const int64_t places = l.c.places_in() - last_place(l, 2, last_line, j + pixels - 1);
      const int64_t readable = (places * planes - (planes - 1)) * l.c.channels_out;
      for (int64_t column = channel; column < block_end; column += kColumns) {
        const int64_t valid = std::min<int64_t>(kColumns, block_end - column);
        const int64_t vectors = (valid + kL - 1) / kL;
        const bool whole = valid == vectors * kL || column + vectors * kL <= readable;
        run[vectors - 1][inside][whole][pixels - 1](l, batch, jd, jh, j, column, valid);
      }
    }
  }
}

// Runs pieces of one line. Tiles whose taps may miss the image take several times as long, so tiles
// at the ends of a line have as few outputs as possible.
void run_line(const Lines& l, int64_t line, int64_t begin, int64_t end, int64_t first,
              int64_t last) {
  const int64_t from = std::clamp(l.inside_begin, begin, end);
  const int64_t to = std::clamp(l.inside_end, from, end);
  if (to - from < kPixels) return run_piece(l, line, begin, end, first, last);
  run_piece(l, line, begin, from, first, last);
  run_piece(l, line, from, to, first, last);
  run_piece(l, line, to, end, first, last);
}

void run_phase(const Lines& l) {
  const AxisPhase &d = *l.phase.axes[0], &h = *l.phase.axes[1], &w = *l.phase.axes[2];
  const int64_t lines = l.c.batch * d.count * h.count, channels = l.c.channels_out;
  if (lines * w.count == 0) return;
  const int64_t work = lines * w.count * channels * std::max<int64_t>(l.phase.k, 1);
  if (work < kSerialWork || num_threads() == 1) {
    for (int64_t line = 0; line < lines; ++line) run_line(l, line, 0, w.count, 0, channels);
    return;
  }
  // Lines are cut where there are too few of them, and then their channels divided; where lines are
  // short, a task has several.
  const int64_t wanted = std::clamp<int64_t>(work / kTaskWork, 1, 64 * num_threads());
  const int64_t cuts = std::clamp<int64_t>(wanted / lines, 1, std::max<int64_t>(1, w.count / 16));
  const int64_t panels = (channels + kPanel - 1) / kPanel;
  const int64_t groups = std::clamp<int64_t>(wanted / (lines * cuts), 1, panels);
  const int64_t pieces = lines * cuts * groups;
  const int64_t tasks = std::min(pieces, wanted);
  parallel_for(tasks, [&](int64_t task) {
    for (int64_t i = pieces * task / tasks; i < pieces * (task + 1) / tasks; ++i) {
      // Neighbouring lines read the same pixels.
      const int64_t line = i % lines, cut = i / lines % cuts, group = i / lines / cuts;
      run_line(l, line, w.count * cut / cuts, w.count * (cut + 1) / cuts,
               panels * group / groups * kPanel,
               std::min(channels, panels * (group + 1) / groups * kPanel));
    }
  });
}

// [places][planes][channels_out]: for each output channel the values that it weighs.
void expand(const Convolution& c, const float* x, float* out) {
  const int64_t places = c.places_in(), width = c.group_in(), repeat = c.group_out();
  const int64_t tasks = std::clamp<int64_t>(places * c.channels_out * width / 16384, 1, places);
  parallel_for(tasks, [&](int64_t task) {
    for (int64_t i = places * task / tasks; i < places * (task + 1) / tasks; ++i) {
      const float* const from = x + i * c.channels_in;
      float* to = out + i * width * c.channels_out;
      for (int64_t plane = 0; plane < width; ++plane) {
        for (int64_t group = 0; group < c.groups; ++group, to += repeat) {
          for (int64_t j = 0; j < repeat; ++j) to[j] = from[group * width + plane];
        }
      }
    }
  });
}

}  // namespace

void convolve_channels(const Convolution& c, const float* x, const float* packed,
                       const Epilogue& epilogue, float* out) {
  const bool as_is = is_mixed(c) || (c.group_in() == 1 && c.group_out() == 1);
  const Block expanded(as_is ? 0 : c.places_in() * c.group_in() * c.channels_out);
  if (!as_is) expand(c, x, expanded.get());
  std::vector<AxisPhase> phases[kMaxSpatial];
  for (int i = 0; i < kMaxSpatial; ++i) phases[i] = phases_of(c.axes[i], c.transposed);
  each_phase(phases, c.group_in(), [&](const ConvPhase& phase) {
    run_phase(Lines(c, phase, as_is ? x : expanded.get(), c.group_in(), packed + phase.k0 * kPanel,
                    c.k() * kPanel, epilogue, out));
  });
}

}  // namespace ec
