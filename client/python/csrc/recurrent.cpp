// Recurrent layers in the CPU's parts and order. PyTorch's own decomposition asks whether it is on
// the CPU: only there the inputs of all steps meet their weights in one product, biases are added
// within products, and oneDNN runs a whole LSTM layer.
#include <ATen/ATen.h>
#include <algorithm>

#include "composites.h"
#include "internal.h"

namespace dt_pu
{
namespace
{

using at::Tensor;
using Tensors = std::vector<Tensor>;

/* Of one layer in one direction. */
struct Weights {
    Tensor ih, hh, ih_bias, hh_bias;
    Tensor hr; /* an LSTM's projection */

    Tensor of_input(const Tensor &input) const
    {
        return linear_of(input, ih, ih_bias);
    }
    Tensor of_hidden(const Tensor &hidden) const
    {
        return linear_of(hidden, hh, hh_bias);
    }

  private:
    static Tensor linear_of(const Tensor &x, const Tensor &weight, const Tensor &bias)
    {
        return at::linear(x, weight, bias.defined() ? std::optional<Tensor>(bias) : std::nullopt);
    }
};

struct State {
    Tensor h, c; /* c: an LSTM's only */
};

/* One step; `gates` is the input's part. */
using Cell = State (*)(const Tensor &gates, const State &before, const Weights &weights);

State rnn_tanh_step(const Tensor &gates, const State &before, const Weights &weights)
{
    return {weights.of_hidden(before.h).add(gates).tanh(), {}};
}

State rnn_relu_step(const Tensor &gates, const State &before, const Weights &weights)
{
    return {weights.of_hidden(before.h).add(gates).relu(), {}};
}

State lstm_step(const Tensor &gates, const State &before, const Weights &weights)
{
    Tensors parts = weights.of_hidden(before.h).add(gates).unsafe_chunk(4, 1);
    Tensor in = parts[0].sigmoid(), forget_gate = parts[1].sigmoid();
    Tensor cell = parts[2].tanh(), out = parts[3].sigmoid();
    Tensor c = (forget_gate * before.c).add(in * cell);
    Tensor h = out * c.tanh();
    return {weights.hr.defined() ? at::matmul(h, weights.hr.t()) : h, c};
}

State gru_step(const Tensor &gates, const State &before, const Weights &weights)
{
    Tensors in = gates.unsafe_chunk(3, 1);
    Tensors hidden = weights.of_hidden(before.h).unsafe_chunk(3, 1);
    Tensor reset = hidden[0].add(in[0]).sigmoid();
    Tensor update = hidden[1].add(in[1]).sigmoid();
    Tensor fresh = in[2].add(hidden[2].mul(reset)).tanh();
    return {(before.h - fresh).mul(update).add(fresh), {}};
}

/* ---- a layer in one direction ---- */

struct Layer {
    Cell cell;
    const Weights &weights;
    const State &first;
    bool is_reverse;
};

struct Run {
    Tensor output;
    State last;
};

/* input (steps, batch, features) */
Run run_steps(const Layer &layer, const Tensor &input)
{
    Tensors steps = layer.weights.of_input(input).unbind(0), outputs;
    State state = layer.first;
    if (layer.is_reverse)
        std::reverse(steps.begin(), steps.end());
    for (const Tensor &step : steps) {
        state = layer.cell(step, state, layer.weights);
        outputs.push_back(state.h);
    }
    if (layer.is_reverse)
        std::reverse(outputs.begin(), outputs.end());
    return {at::stack(outputs, 0), state};
}

State rows_of(const State &state, int64_t begin, int64_t end)
{
    return {state.h.narrow(0, begin, end - begin),
            state.c.defined() ? state.c.narrow(0, begin, end - begin) : Tensor()};
}

State join(const std::vector<State> &states)
{
    Tensors h, c;
    for (const State &state : states) {
        h.push_back(state.h);
        if (state.c.defined())
            c.push_back(state.c);
    }
    return {at::cat(h, 0), c.empty() ? Tensor() : at::cat(c, 0)};
}

/* Packed data, (sum of sizes, features): step i has the first sizes[i] sequences, fewer with each.
 * Those that have ended leave the state, longest ones last. */
Run run_packed(const Layer &layer, const Tensor &data, const std::vector<int64_t> &sizes)
{
    Tensor gates = layer.weights.of_input(data);
    std::vector<State> ended;
    Tensors outputs;
    State state = layer.first;
    int64_t offset = 0, rows = sizes[0];
    for (int64_t size : sizes) {
        if (size < rows) {
            ended.push_back(rows_of(state, size, rows));
            state = rows_of(state, 0, size);
        }
        state = layer.cell(gates.narrow(0, offset, size), state, layer.weights);
        outputs.push_back(state.h);
        offset += size;
        rows = size;
    }
    ended.push_back(state);
    std::reverse(ended.begin(), ended.end());
    return {at::cat(outputs, 0), join(ended)};
}

/* From the end: shorter sequences come in as their last step is reached. */
Run run_packed_reverse(const Layer &layer, const Tensor &data, const std::vector<int64_t> &sizes)
{
    Tensor gates = layer.weights.of_input(data);
    Tensors outputs;
    int64_t offset = data.size(0), rows = sizes.back();
    State state = rows_of(layer.first, 0, rows);
    for (size_t i = sizes.size(); i-- > 0;) {
        if (sizes[i] > rows)
            state = join({state, rows_of(layer.first, rows, sizes[i])});
        rows = sizes[i];
        offset -= rows;
        state = layer.cell(gates.narrow(0, offset, rows), state, layer.weights);
        outputs.push_back(state.h);
    }
    std::reverse(outputs.begin(), outputs.end());
    return {at::cat(outputs, 0), state};
}

/* ---- all layers ---- */

struct Net {
    Cell cell;
    Tensor h, c; /* (layers * directions, batch, features) */
    at::TensorList params;
    bool has_biases;
    int64_t layers;
    double dropout;
    bool train, is_bidirectional, is_batch_first;
    std::vector<int64_t> sizes; /* of packed data's steps */
    bool is_whole = false;      /* oneDNN runs each layer */

    int64_t directions() const
    {
        return is_bidirectional ? 2 : 1;
    }
    bool has_projection() const
    {
        return c.defined() && h.size(2) != c.size(2);
    }
};

std::vector<Weights> weights_of(const Net &net)
{
    const size_t each = (net.has_biases ? 4 : 2) + (net.has_projection() ? 1 : 0);
    TORCH_CHECK(net.params.size() == each * (size_t)(net.layers * net.directions()),
                "got an incorrect number of RNN parameters");
    std::vector<Weights> all;
    for (size_t at = 0; at < net.params.size(); at += each) {
        Weights one{net.params[at], net.params[at + 1], {}, {}, {}};
        if (net.has_biases) {
            one.ih_bias = net.params[at + 2];
            one.hh_bias = net.params[at + 3];
        }
        if (net.has_projection())
            one.hr = net.params[at + each - 1];
        all.push_back(std::move(one));
    }
    return all;
}

/* Without biases oneDNN's operator is given zeros like the weights, as by PyTorch. */
Run run_whole(const Net &net, const Layer &layer, const Tensor &input)
{
    constexpr int64_t lstm = 2; /* oneDNN's number */
    const Weights &w = layer.weights;
    auto bias = [&](const Tensor &given, const Tensor &like) {
        return net.has_biases ? given : at::zeros(like.sizes(), like.options());
    };
    auto made = at::mkldnn_rnn_layer(
        input, w.ih, w.hh, bias(w.ih_bias, w.ih), bias(w.hh_bias, w.hh), layer.first.h,
        layer.first.c, layer.is_reverse, {}, lstm, net.h.size(2), net.layers, net.has_biases,
        net.is_bidirectional, net.is_batch_first, net.train);
    return {std::get<0>(made), {std::get<1>(made), std::get<2>(made)}};
}

Run run_layer(const Net &net, const Layer &layer, const Tensor &input)
{
    if (net.is_whole)
        return run_whole(net, layer, input);
    if (net.sizes.empty())
        return run_steps(layer, input);
    return layer.is_reverse ? run_packed_reverse(layer, input, net.sizes)
                            : run_packed(layer, input, net.sizes);
}

Run run_net(const Net &net, const Tensor &given)
{
    const std::vector<Weights> weights = weights_of(net);
    Tensors first_h = net.h.unbind(0), first_c, last_h, last_c;
    Tensor input = net.is_batch_first ? given.transpose(0, 1) : given;
    if (net.c.defined())
        first_c = net.c.unbind(0);
    if (net.is_whole)
        input = input.contiguous();
    for (int64_t number = 0; number < net.layers; number++) {
        Tensors outputs;
        for (int64_t direction = 0; direction < net.directions(); direction++) {
            const size_t at = (size_t)(number * net.directions() + direction);
            State first{first_h[at], net.c.defined() ? first_c[at] : Tensor()};
            Run run = run_layer(net, {net.cell, weights[at], first, direction == 1}, input);
            outputs.push_back(run.output);
            last_h.push_back(run.last.h);
            if (net.c.defined())
                last_c.push_back(run.last.c);
        }
        input = outputs.size() == 1 ? outputs[0] : at::cat(outputs, outputs[0].dim() - 1);
        if (net.dropout != 0 && net.train && number + 1 < net.layers)
            input = at::dropout(input, net.dropout, true);
    }
    return {net.is_batch_first ? input.transpose(0, 1) : input,
            {at::stack(last_h, 0), last_c.empty() ? Tensor() : at::stack(last_c, 0)}};
}

std::vector<int64_t> sizes_of(const Tensor &batch_sizes)
{
    const Tensor here = batch_sizes.cpu().to(at::kLong).contiguous();
    const int64_t *at = here.const_data_ptr<int64_t>();
    TORCH_CHECK(here.numel() > 0, "a packed sequence has no step");
    return {at, at + here.numel()};
}

bool is_on_mesh(const Tensor &tensor)
{
    return tensor.device().type() == kind && storage_of(tensor)->mesh != 0;
}

/* Whether the CPU would have it run by oneDNN. On a mesh it would have to be gathered. */
bool runs_whole(const Net &net, const Tensor &input)
{
    return at::globalContext().userEnabledMkldnn() && strcmp(device_kind(), "cpu") == 0 &&
           input.scalar_type() == at::kFloat && input.numel() != 0 && !net.has_projection() &&
           !is_on_mesh(input) && std::none_of(net.params.begin(), net.params.end(), is_on_mesh);
}

/* ---- PyTorch's operators ---- */

// NOLINTBEGIN(readability-function-size): PyTorch's own signatures

template <Cell cell>
std::tuple<Tensor, Tensor> rnn(const Tensor &input, const Tensor &hx, at::TensorList params,
                               bool has_biases, int64_t layers, double dropout, bool train,
                               bool is_bidirectional, bool is_batch_first)
{
    Run run = run_net({cell,
                       hx,
                       {},
                       params,
                       has_biases,
                       layers,
                       dropout,
                       train,
                       is_bidirectional,
                       is_batch_first,
                       {}},
                      input);
    return {run.output, run.last.h};
}

template <Cell cell>
std::tuple<Tensor, Tensor>
rnn_packed(const Tensor &data, const Tensor &batch_sizes, const Tensor &hx, at::TensorList params,
           bool has_biases, int64_t layers, double dropout, bool train, bool is_bidirectional)
{
    Run run = run_net({cell,
                       hx,
                       {},
                       params,
                       has_biases,
                       layers,
                       dropout,
                       train,
                       is_bidirectional,
                       false,
                       sizes_of(batch_sizes)},
                      data);
    return {run.output, run.last.h};
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor &input, at::TensorList hx,
                                        at::TensorList params, bool has_biases, int64_t layers,
                                        double dropout, bool train, bool is_bidirectional,
                                        bool is_batch_first)
{
    TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
    Net net{lstm_step,        hx[0],          hx[1], params, has_biases, layers, dropout, train,
            is_bidirectional, is_batch_first, {}};
    net.is_whole = runs_whole(net, input);
    if (net.is_whole) {
        net.h = net.h.contiguous();
        net.c = net.c.contiguous();
    }
    Run run = run_net(net, input);
    return {run.output, run.last.h, run.last.c};
}

std::tuple<Tensor, Tensor, Tensor> lstm_packed(const Tensor &data, const Tensor &batch_sizes,
                                               at::TensorList hx, at::TensorList params,
                                               bool has_biases, int64_t layers, double dropout,
                                               bool train, bool is_bidirectional)
{
    TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
    Run run = run_net({lstm_step, hx[0], hx[1], params, has_biases, layers, dropout, train,
                       is_bidirectional, false, sizes_of(batch_sizes)},
                      data);
    return {run.output, run.last.h, run.last.c};
}

// NOLINTEND(readability-function-size)

Weights cell_weights(const Tensor &ih, const Tensor &hh, const std::optional<Tensor> &ih_bias,
                     const std::optional<Tensor> &hh_bias)
{
    return {ih, hh, ih_bias.value_or(Tensor()), hh_bias.value_or(Tensor()), {}};
}

std::tuple<Tensor, Tensor> one_lstm(const Tensor &input, at::TensorList hx, const Tensor &ih,
                                    const Tensor &hh, const std::optional<Tensor> &ih_bias,
                                    const std::optional<Tensor> &hh_bias)
{
    TORCH_CHECK(hx.size() == 2, "lstm_cell expects two hidden states");
    Weights weights = cell_weights(ih, hh, ih_bias, hh_bias);
    State made = lstm_step(weights.of_input(input), {hx[0], hx[1]}, weights);
    return {made.h, made.c};
}

Tensor one_gru(const Tensor &input, const Tensor &hx, const Tensor &ih, const Tensor &hh,
               const std::optional<Tensor> &ih_bias, const std::optional<Tensor> &hh_bias)
{
    Weights weights = cell_weights(ih, hh, ih_bias, hh_bias);
    return gru_step(weights.of_input(input), {hx, {}}, weights).h;
}

} // namespace

void register_recurrent(torch::Library &device, torch::Library &autograd)
{
    for (torch::Library *lib : {&device, &autograd}) {
        lib->impl("lstm.input", TORCH_FN(lstm));
        lib->impl("lstm.data", TORCH_FN(lstm_packed));
        lib->impl("gru.input", TORCH_FN(rnn<gru_step>));
        lib->impl("gru.data", TORCH_FN(rnn_packed<gru_step>));
        lib->impl("rnn_tanh.input", TORCH_FN(rnn<rnn_tanh_step>));
        lib->impl("rnn_tanh.data", TORCH_FN(rnn_packed<rnn_tanh_step>));
        lib->impl("rnn_relu.input", TORCH_FN(rnn<rnn_relu_step>));
        lib->impl("rnn_relu.data", TORCH_FN(rnn_packed<rnn_relu_step>));
        lib->impl("lstm_cell", TORCH_FN(one_lstm));
        lib->impl("gru_cell", TORCH_FN(one_gru));
    }
}

} // namespace dt_pu
