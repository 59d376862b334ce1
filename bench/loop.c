/* The perceptron rule over a batch of columns, with what the service's kernel gives for each event: its baseline. */
#include <math.h>
#include <stdint.h>

void learn(double eta, double *w, const uint64_t *starts, const uint32_t *columns, const double *values,
           const double *labels, const double *weights, double *scores, double *steps, double *squared_norms,
           int64_t *predicted, int64_t events)
{
    for (int64_t i = 0; i < events; i++) {
        double s = w[0], squared = 1.0;
        for (uint64_t j = starts[i]; j < starts[i + 1]; j++) {
            s += w[columns[j]] * values[j];
            squared += values[j] * values[j];
        }
        double step = labels[i] * s <= 0.0 ? eta * weights[i] * labels[i] : 0.0;
        scores[i] = s;
        steps[i] = step;
        squared_norms[i] = squared;
        predicted[i] = s > 0.0;
        if (step != 0.0) {
            w[0] += step;
            for (uint64_t j = starts[i]; j < starts[i + 1]; j++)
                w[columns[j]] += step * values[j];
        }
    }
}
