// The recurrent layer of AOTInductor's C ABI, our own operator.
#include <cstring>

#include "base/profile.h"
#include "kernels/recurrence.h"
#include "shim/arguments.h"
#include "shim/handles.h"

namespace ec {
namespace {

void check_state(const Tensor& state, int64_t batch, int64_t hidden, const char* role) {
  require_float32(state, role);
  if (state.dims != 2 || state.sizes[0] != batch || state.sizes[1] != hidden) {
    fail("%s isn't [%ld, %ld]", role, batch, hidden);
  }
}

}  // namespace

EC_API int32_t ec_aoti_torch_cpu_ec_recurrence(AtenTensorHandle gates, AtenTensorHandle w_packed,
                                               AtenTensorHandle* bias, AtenTensorHandle h0,
                                               AtenTensorHandle* c0, int64_t kind, int32_t reverse,
                                               AtenTensorHandle* ret0, AtenTensorHandle* ret1,
                                               AtenTensorHandle* ret2) {
  return guarded("aoti_torch_cpu_ec_recurrence", [&] {
    if (kind < 0 || kind > static_cast<int64_t>(Recurrence::kRnnRelu)) {
      fail("kind %ld is unknown", kind);
    }
    RecurrenceSteps steps{};
    steps.kind = static_cast<Recurrence>(kind);
    steps.reverse = reverse != 0;
    const Tensor& x = *unwrap(gates);
    require_float32(x, "gates");
    require_dims(x, 3, "gates");
    require_dims(*unwrap(h0), 2, "h0");
    steps.length = x.sizes[0];
    steps.batch = x.sizes[1];
    steps.hidden = unwrap(h0)->sizes[1];
    const int64_t width = gate_count(steps.kind) * steps.hidden;
    if (x.sizes[2] != width || steps.hidden < 1) {
      fail("gates have %ld columns, a state of %ld needs %ld", x.sizes[2], steps.hidden, width);
    }
    check_state(*unwrap(h0), steps.batch, steps.hidden, "h0");
    const Tensor& packed = *unwrap(w_packed);
    require_packed(packed, width, steps.hidden);
    steps.w_packed = &packed;
    OwnedTensor gate_copy, state_copy, bias_copy;
    steps.gates = row_major(x, &gate_copy).as<float>();
    steps.bias = vector_of(unwrap_optional(bias), width, "bias", &bias_copy);
    steps.h0 = row_major(*unwrap(h0), &state_copy).as<float>();

    const bool has_cell = steps.kind == Recurrence::kLstm;
    const Tensor* first_cell = unwrap_optional(c0);
    if (has_cell != (first_cell != nullptr)) fail("an LSTM has a c0, and nothing else has");
    const int64_t sizes[3] = {steps.length, steps.batch, steps.hidden};
    const int64_t cell_sizes[2] = {has_cell ? steps.batch : 0, steps.hidden};
    OwnedTensor y(new_contiguous(3, sizes, kFloat32));
    OwnedTensor h(new_contiguous(2, sizes + 1, kFloat32));
    OwnedTensor c(new_contiguous(2, cell_sizes, kFloat32));
    if (has_cell) {
      check_state(*first_cell, steps.batch, steps.hidden, "c0");
      copy_elements(*first_cell, c.get());
    }
    steps.y = y->as<float>();
    steps.c = c->as<float>();
    const int64_t rows = steps.length * steps.batch;
    // The weights are read again for each step, from a cache if they fit.
    const int64_t bytes =
        packed.numel() * element_size(packed.dtype) + 4 * rows * (width + steps.hidden);
    const WorkTimer timer(Work::kLinear,
                          product_size(rows, width, steps.hidden, packed.dtype, bytes));
    run_recurrence(steps);
    const int64_t last = steps.reverse ? 0 : steps.length - 1;
    const float* const end =
        steps.length > 0 ? steps.y + last * steps.batch * steps.hidden : steps.h0;
    std::memcpy(h->as<float>(), end, static_cast<size_t>(steps.batch * steps.hidden) * 4);
    *ret0 = wrap(y.release());
    *ret1 = wrap(h.release());
    *ret2 = wrap(c.release());
  });
}

}  // namespace ec
