// What the live page uses of ECharts; each further part makes the file larger.
import * as core from 'echarts/core';
import { CustomChart, GraphChart, LineChart, ScatterChart } from 'echarts/charts';
import {
  AxisPointerComponent,
  DataZoomInsideComponent,
  DataZoomSliderComponent,
  GridComponent,
  LegendScrollComponent,
  MarkLineComponent,
  TooltipComponent,
} from 'echarts/components';
import { CanvasRenderer, SVGRenderer } from 'echarts/renderers';

core.use([
  CustomChart, GraphChart, LineChart, ScatterChart,
  AxisPointerComponent, DataZoomInsideComponent, DataZoomSliderComponent, GridComponent,
  LegendScrollComponent, MarkLineComponent, TooltipComponent,
  CanvasRenderer, SVGRenderer,
]);

globalThis.echarts = core;
